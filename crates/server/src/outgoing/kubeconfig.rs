//! The kubeconfig of a webhook: where it is, its CA, and what the server shows to it.
//!
//! Promise: an error names a field and shows no value: values are secrets.

use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use headwater_json::Value;
use headwater_schema::yaml;

use super::{ClientCredential, WebhookEndpoint};

/// Reads the endpoint of the current context. Relative paths are relative to the file.
pub(crate) fn endpoint(path: &Path) -> Result<WebhookEndpoint, String> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
    let parsed = yaml::parse(&bytes).map_err(|error| format!("{shown}: {error}"))?;
    let directory = path.parent().unwrap_or(Path::new(""));
    read(&parsed.value, directory).map_err(|why| format!("{shown}: {why}"))
}

fn read(config: &Value, directory: &Path) -> Result<WebhookEndpoint, String> {
    let named = |list: &str, name: &Value, what: &str| -> Value {
        let all = config[list].as_array().into_iter().flatten();
        let found = all.into_iter().find(|entry| entry["name"] == *name);
        found.map(|entry| entry[what].clone()).unwrap_or_default()
    };
    let context = named("contexts", &config["current-context"], "context");
    if !context.is_object() {
        return Err("current-context names no context".to_owned());
    }
    let cluster = named("clusters", &context["cluster"], "cluster");
    let user = named("users", &context["user"], "user");
    let server = cluster["server"].as_str().unwrap_or_default();
    if !server.starts_with("https://") {
        return Err("the cluster's server must be an https URL".to_owned());
    }
    let content = |of: &Value, key: &str| content(of, key, directory);
    let authority = content(&cluster, "certificate-authority")?.unwrap_or_default();
    let endpoint = WebhookEndpoint::at(server, authority.into_bytes())?;
    let token = match user["token"].as_str() {
        Some(token) => Some(token.to_owned()),
        None => file(&user, "tokenFile", directory)?.map(|token| token.trim().to_owned()),
    };
    let pair = (content(&user, "client-certificate")?, content(&user, "client-key")?);
    Ok(match (token, pair) {
        (_, (Some(chain), Some(key))) => endpoint.with_credential(ClientCredential::Certificate {
            chain: chain.into(),
            key: key.into(),
        }),
        (_, (Some(_), None) | (None, Some(_))) => {
            return Err("a client certificate and its key are needed together".to_owned());
        }
        (Some(token), _) => endpoint.with_credential(ClientCredential::Token(token.into())),
        (None, _) => endpoint,
    })
}

/// The content of `KEY-data`, or of the file that `KEY` names.
fn content(of: &Value, key: &str, directory: &Path) -> Result<Option<String>, String> {
    let data = format!("{key}-data");
    match of[data.as_str()].as_str() {
        Some(encoded) => {
            let bytes = STANDARD.decode(encoded).ok();
            let text = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
            text.map(Some).ok_or_else(|| format!("{data} is not PEM in base64"))
        }
        None => file(of, key, directory),
    }
}

fn file(of: &Value, key: &str, directory: &Path) -> Result<Option<String>, String> {
    let Some(name) = of[key].as_str().filter(|name| !name.is_empty()) else { return Ok(None) };
    let path = directory.join(name);
    let read = std::fs::read_to_string(&path);
    read.map(Some).map_err(|error| format!("{key}: cannot read {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use headwater_json::json;

    use super::*;

    fn config(cluster: &Value, user: &Value) -> Value {
        json!({
            "clusters": [{ "name": "c", "cluster": cluster }],
            "users": [{ "name": "u", "user": user }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
            "current-context": "x",
        })
    }

    #[test]
    fn the_credential_is_inline_or_in_a_file() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), "CA").unwrap();
        std::fs::write(directory.path().join("token"), "secret\n").unwrap();
        let read = |user: Value| {
            let cluster =
                json!({ "server": "https://hook:1/x", "certificate-authority": "ca.pem" });
            read(&config(&cluster, &user), directory.path())
        };
        let found = read(json!({ "tokenFile": "token" })).unwrap();
        assert_eq!((found.authority_name().as_str(), &found.authority[..]), ("hook:1", &b"CA"[..]));
        assert_eq!(found.credential, Some(ClientCredential::Token("secret".into())));
        let inline = read(json!({ "token": "secret" })).unwrap();
        assert_eq!(inline, found);
        assert!(!format!("{found:?}").contains("secret"));
        let pem = STANDARD.encode("pem");
        let both = json!({ "client-certificate-data": pem, "client-key-data": pem });
        let expected = ClientCredential::Certificate { chain: "pem".into(), key: "pem".into() };
        assert_eq!(read(both).unwrap().credential, Some(expected));
        let half = json!({ "client-certificate-data": pem });
        assert!(read(half).unwrap_err().contains("together"));
        assert!(read(json!({ "tokenFile": "none" })).unwrap_err().contains("cannot read"));
        assert_eq!(read(json!({})).unwrap().credential, None);
    }

    #[test]
    fn only_https_is_called() {
        let plain = config(&json!({ "server": "http://hook" }), &json!({}));
        assert!(read(&plain, Path::new("")).unwrap_err().contains("https"));
        assert!(read(&json!({}), Path::new("")).unwrap_err().contains("context"));
    }
}
