//! Validation of a `clientConfig`, with Kubernetes' messages.

use headwater_api::status::FieldError;
use headwater_json::Value;

/// All errors.
pub(crate) fn errors(config: &Value, at: &str) -> Vec<FieldError> {
    let (url, service) = (&config["url"], &config["service"]);
    match (url.as_str(), service.is_object()) {
        (Some(url), false) => self::url(url, &format!("{at}.url")),
        (None, true) => self::service(service, &format!("{at}.service")),
        _ => vec![FieldError::required(at, "exactly one of url or service is required")],
    }
}

fn url(url: &str, field: &str) -> Vec<FieldError> {
    const FORM: &str = "; desired format: https://host[/path]";
    let Ok(uri) = url.parse::<http::Uri>() else {
        let why = format!("url must be a valid URL: invalid uri{FORM}");
        return vec![FieldError::required(field, &why)];
    };
    let scheme = uri.scheme_str().unwrap_or_default();
    let user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    let fragment = url.split_once('#').map(|(_, fragment)| fragment);
    let mut errors = Vec::new();
    let mut invalid = |value: &str, why: &str| {
        errors.push(FieldError::invalid(field, &value.into(), why));
    };
    if scheme != "https" {
        invalid(scheme, &format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if uri.host().unwrap_or_default().is_empty() {
        invalid("", &format!("host must be specified{FORM}"));
    }
    if user {
        invalid(url, "user information is not permitted in the URL");
    }
    if let Some(query) = uri.query() {
        invalid(query, "query parameters are not permitted in the URL");
    }
    if let Some(fragment) = fragment {
        invalid(fragment, "fragments are not permitted in the URL");
    }
    errors
}

fn service(service: &Value, at: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for key in ["name", "namespace"] {
        if service[key].as_str().unwrap_or_default().is_empty() {
            let why = format!("service {key} is required");
            errors.push(FieldError::required(format!("{at}.{key}"), &why));
        }
    }
    let port = &service["port"];
    if !port.is_null() && !port.as_i64().is_some_and(|port| (1..=65535).contains(&port)) {
        let why = "port is not valid: must be between 1 and 65535, inclusive";
        errors.push(FieldError::invalid(format!("{at}.port"), port, why));
    }
    errors
}
