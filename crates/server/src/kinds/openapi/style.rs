//! The two versions of OpenAPI, and the words of operation ids and tags.

/// The version of OpenAPI.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    V2,
    V3,
}

impl Style {
    /// The prefix of references to schemas.
    pub(super) fn prefix(self) -> &'static str {
        match self {
            Style::V2 => "#/definitions/",
            Style::V3 => "#/components/schemas/",
        }
    }
}

/// The media types of objects.
pub(super) const MEDIA: &[&str] =
    &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

/// `/api/v1` or `/apis/GROUP/VERSION`.
pub(super) fn of_version(group: &str, version: &str) -> String {
    match group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{group}/{version}"),
    }
}

/// The tag of a group version, such as `rbacAuthorization_v1`.
pub(super) fn tag(group: &str, version: &str) -> String {
    format!("{}_{version}", lower(&words(group)))
}

/// A group in the words of operation ids: `rbac.authorization.k8s.io` is `RbacAuthorization`.
pub(super) fn words(group: &str) -> String {
    if group.is_empty() {
        return "Core".to_owned();
    }
    let own = group.strip_suffix(".k8s.io").unwrap_or(group);
    own.split(['.', '-']).map(capital).collect()
}

/// With an upper-case first letter.
pub(super) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// With a lower-case first letter.
pub(super) fn lower(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S1.12
    #[test]
    fn groups_have_the_words_that_generated_clients_know() {
        assert_eq!(tag("", "v1"), "core_v1");
        assert_eq!(tag("rbac.authorization.k8s.io", "v1"), "rbacAuthorization_v1");
        assert_eq!(tag("stable.example.com", "v1beta1"), "stableExampleCom_v1beta1");
        assert_eq!(words("apps"), "Apps");
    }
}
