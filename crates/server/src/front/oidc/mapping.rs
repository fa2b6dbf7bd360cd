//! From the claims of a verified token to a user.
//!
//! Promise: every rule holds for the user that results; a claim of another type than expected is an
//! error, never an empty value.

use std::collections::BTreeMap;

use headwater_json::{Value, json};

use super::config::{ConfigurationError, JwtIssuerConfig, MappedClaim};
use super::expression::{Expression, Subject, texts};
use crate::front::identity::Identity;

/// The compiled mappings and rules of an issuer.
#[derive(Debug)]
pub(super) struct ClaimMapping {
    rules: Vec<(TokenRule, String)>,
    username: ClaimSource,
    groups: Option<ClaimSource>,
    uid: Option<ClaimSource>,
    extra: Vec<(String, Expression)>,
    user_rules: Vec<(Expression, String)>,
}

#[derive(Debug)]
enum TokenRule {
    Value { claim: String, value: String },
    Expression(Expression),
}

#[derive(Debug)]
enum ClaimSource {
    Claim { name: String, prefix: String },
    Expression(Expression),
}

impl ClaimSource {
    fn new(
        mapped: &MappedClaim,
        results: &[&str],
        field: &str,
    ) -> Result<Option<ClaimSource>, ConfigurationError> {
        if !mapped.is_set() {
            return Ok(None);
        }
        Ok(Some(match mapped.expression.as_str() {
            "" => ClaimSource::Claim {
                name: mapped.claim.clone(),
                prefix: mapped.prefix.clone().unwrap_or_default(),
            },
            text => {
                let field = format!("{field}.expression");
                ClaimSource::Expression(Expression::compile(
                    text,
                    Subject::Claims,
                    results,
                    &field,
                )?)
            }
        }))
    }

    fn text(&self, claims: &Value) -> Result<String, String> {
        match self {
            ClaimSource::Expression(expression) => expression.text(claims),
            ClaimSource::Claim { name, prefix } => match claims[name.as_str()].as_str() {
                Some(text) => Ok(format!("{prefix}{text}")),
                None => Err(format!("the claim {name:?} is missing or not a string")),
            },
        }
    }

    fn texts(&self, claims: &Value) -> Result<Vec<String>, String> {
        match self {
            ClaimSource::Expression(expression) => expression.texts(claims),
            ClaimSource::Claim { name, prefix } => {
                let found = texts(&claims[name.as_str()]);
                let found = found.ok_or_else(|| {
                    format!("the claim {name:?} is not a string or a list of them")
                })?;
                Ok(found.into_iter().map(|text| format!("{prefix}{text}")).collect())
            }
        }
    }
}

impl ClaimMapping {
    /// Compiles a configuration that was checked.
    pub(super) fn new(
        config: &JwtIssuerConfig,
        at: &str,
    ) -> Result<ClaimMapping, ConfigurationError> {
        let mappings = &config.claim_mappings;
        let field = |name: &str| format!("{at}.claimMappings.{name}");
        let username = ClaimSource::new(&mappings.username, &["string"], &field("username"))?;
        let username = username.ok_or_else(|| ConfigurationError::new(field("username")))?;
        let mut rules = Vec::new();
        for (index, rule) in config.claim_validation_rules.iter().enumerate() {
            let field = format!("{at}.claimValidationRules[{index}].expression");
            rules.push(match rule.expression.as_str() {
                "" => {
                    let (claim, value) = (rule.claim.clone(), rule.required_value.clone());
                    let why = format!("the claim {claim:?} does not have the required value");
                    (TokenRule::Value { claim, value }, why)
                }
                text => {
                    let rule_of = Expression::compile(text, Subject::Claims, &["bool"], &field)?;
                    (TokenRule::Expression(rule_of), message(&rule.message, text))
                }
            });
        }
        let mut extra = Vec::new();
        for (index, mapped) in mappings.extra.iter().enumerate() {
            let field = field(&format!("extra[{index}].valueExpression"));
            let results = ["string", "list", "null_type"];
            let value = &mapped.value_expression;
            let compiled = Expression::compile(value, Subject::Claims, &results, &field)?;
            extra.push((mapped.key.clone(), compiled));
        }
        let mut user_rules = Vec::new();
        for (index, rule) in config.user_validation_rules.iter().enumerate() {
            let field = format!("{at}.userValidationRules[{index}].expression");
            let compiled = Expression::compile(&rule.expression, Subject::User, &["bool"], &field)?;
            user_rules.push((compiled, message(&rule.message, &rule.expression)));
        }
        check_email(config, &field("username.expression"))?;
        Ok(ClaimMapping {
            rules,
            username,
            groups: ClaimSource::new(
                &mappings.groups,
                &["string", "list", "null_type"],
                &field("groups"),
            )?,
            uid: ClaimSource::new(&mappings.uid, &["string"], &field("uid"))?,
            extra,
            user_rules,
        })
    }

    /// The user of verified claims.
    pub(super) fn identify(&self, claims: &Value) -> Result<Identity, String> {
        for (rule, why) in &self.rules {
            let holds = match rule {
                TokenRule::Value { claim, value } => claims[claim.as_str()] == value.as_str(),
                TokenRule::Expression(expression) => expression.holds(claims)?,
            };
            if !holds {
                return Err(why.clone());
            }
        }
        let is_email = matches!(&self.username, ClaimSource::Claim { name, .. } if name == "email");
        let verified = &claims["email_verified"];
        if is_email && !verified.is_null() && *verified != true {
            return Err("the email address is not verified".to_owned());
        }
        let user = self.username.text(claims)?;
        if user.is_empty() {
            return Err("the name of the user is empty".to_owned());
        }
        let groups = self.groups.as_ref().map(|groups| groups.texts(claims)).transpose()?;
        let mut identity = Identity::authenticated(user, unique(groups.unwrap_or_default()));
        if let Some(uid) = &self.uid {
            identity.uid = uid.text(claims)?;
        }
        for (key, expression) in &self.extra {
            let values = expression.texts(claims)?;
            if !values.is_empty() {
                identity.extra.insert(key.clone(), values);
            }
        }
        self.check_user(&identity)?;
        Ok(identity)
    }

    fn check_user(&self, identity: &Identity) -> Result<(), String> {
        if self.user_rules.is_empty() {
            return Ok(());
        }
        // The rules are about what the token says, before the server adds a group.
        let groups: Vec<&String> = identity
            .groups
            .iter()
            .filter(|group| *group != crate::front::identity::AUTHENTICATED)
            .collect();
        let extra: &BTreeMap<String, Vec<String>> = &identity.extra;
        let user = json!({
            "username": identity.user, "uid": identity.uid, "groups": groups, "extra": extra,
        });
        for (rule, why) in &self.user_rules {
            if !rule.holds(&user)? {
                return Err(why.clone());
            }
        }
        Ok(())
    }
}

fn message(message: &str, expression: &str) -> String {
    match message {
        "" => format!("the rule {expression:?} does not hold"),
        message => message.to_owned(),
    }
}

fn unique(mut groups: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    groups.retain(|group| seen.insert(group.clone()));
    groups
}

/// A name from `claims.email` needs a look at `claims.email_verified`: issuers let people enter any
/// address.
fn check_email(config: &JwtIssuerConfig, field: &str) -> Result<(), ConfigurationError> {
    let mappings = &config.claim_mappings;
    let is_used = |text: &str, name: &str| {
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        let mut parts = text.split(name).skip(1);
        parts.any(ends)
    };
    let rules = config.claim_validation_rules.iter().map(|rule| &rule.expression);
    let extra = mappings.extra.iter().map(|extra| &extra.value_expression);
    let mut all = std::iter::once(&mappings.username.expression).chain(rules).chain(extra);
    if !is_used(&mappings.username.expression, "claims.email")
        || all.any(|text| is_used(text, "claims.email_verified"))
    {
        return Ok(());
    }
    Err(ConfigurationError::new(format!(
        "{field}: claims.email_verified must be used in the expression, an extra or a validation rule, \
         if claims.email is"
    )))
}

#[cfg(test)]
mod tests {
    use super::super::config::AuthenticationConfiguration;
    use super::*;

    fn mapping(change: &Value) -> Result<ClaimMapping, ConfigurationError> {
        let mut issuer = json!({
            "issuer": { "url": "https://issuer.example.org", "audiences": ["a"] },
            "claimMappings": { "username": { "claim": "sub", "prefix": "x:" } },
        });
        for (key, value) in change.as_object().unwrap() {
            issuer[key.as_str()] = value.clone();
        }
        let file = json!({
            "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
            "jwt": [issuer],
        });
        let read = AuthenticationConfiguration::parse(file.to_string().as_bytes())?;
        ClaimMapping::new(&read.jwt[0], "jwt[0]")
    }

    #[track_caller]
    fn check(change: &Value, claims: &Value, expected: Result<(&str, &[&str]), &str>) {
        let found = mapping(change).unwrap().identify(claims);
        match (found, expected) {
            (Ok(found), Ok((user, groups))) => {
                assert_eq!(found.user, user);
                assert_eq!(found.groups[..found.groups.len() - 1], *groups);
            }
            (Err(why), Err(expected)) => assert!(why.contains(expected), "{why}"),
            (found, _) => panic!("{found:?}"),
        }
    }

    /// S8.16
    #[test]
    fn claims_become_a_user() {
        let groups = |more: Value| {
            json!({ "claimMappings": {
                "username": { "claim": "sub", "prefix": "x:" }, "groups": more,
            }})
        };
        let by_claim = groups(json!({ "claim": "roles", "prefix": "g:" }));
        let by_text = groups(json!({ "expression": "claims.roles.split(',')" }));
        check(&by_claim, &json!({ "sub": "a" }), Ok(("x:a", &[])));
        check(&by_claim, &json!({ "sub": "a", "roles": "r" }), Ok(("x:a", &["g:r"])));
        let two = json!({ "sub": "a", "roles": ["r", "s", "r"] });
        check(&by_claim, &two, Ok(("x:a", &["g:r", "g:s"])));
        check(&by_claim, &json!({ "sub": "a", "roles": [1] }), Err("not a string or a list"));
        check(&by_claim, &json!({ "sub": 7 }), Err("missing or not a string"));
        check(&by_claim, &json!({}), Err("missing or not a string"));
        check(&by_text, &json!({ "sub": "a", "roles": "r,s" }), Ok(("x:a", &["r", "s"])));
        check(&by_text, &json!({ "sub": "a" }), Err("an expression of the configuration failed"));
    }

    /// S8.16
    #[test]
    fn rules_hold_for_claims_and_for_the_user() {
        let rules = json!({
            "claimValidationRules": [
                { "claim": "hd", "requiredValue": "example.org" },
                { "expression": "claims.exp - claims.iat <= 3600", "message": "too long" },
            ],
            "userValidationRules": [
                { "expression": "!user.username.startsWith('x:system:')", "message": "reserved" },
                { "expression": "user.groups.all(g, g != 'system:masters')" },
            ],
            "claimMappings": {
                "username": { "claim": "sub", "prefix": "x:" },
                "groups": { "claim": "roles", "prefix": "" },
                "uid": { "claim": "id" },
                "extra": [{ "key": "example.org/team", "valueExpression": "claims.?team.orValue('')" }],
            },
        });
        let claims = |change: Value| {
            let mut claims = json!({
                "sub": "a", "hd": "example.org", "iat": 0, "exp": 3600, "id": "7", "team": "red",
            });
            for (key, value) in change.as_object().unwrap() {
                claims[key.as_str()] = value.clone();
            }
            claims
        };
        let found = mapping(&rules).unwrap().identify(&claims(json!({}))).unwrap();
        assert_eq!(
            (found.uid.as_str(), &found.extra["example.org/team"][..]),
            ("7", &["red".to_owned()][..])
        );
        let bare = mapping(&rules).unwrap().identify(&claims(json!({ "team": "" }))).unwrap();
        assert!(bare.extra.is_empty());
        let refused = |change: Value, why: &str| check(&rules, &claims(change), Err(why));
        refused(json!({ "hd": "evil.org" }), "\"hd\" does not have the required value");
        refused(json!({ "hd": ["example.org"] }), "required value");
        refused(json!({ "exp": 9999 }), "too long");
        refused(json!({ "sub": "system:admin" }), "reserved");
        refused(json!({ "roles": ["system:masters"] }), "does not hold");
        refused(json!({ "id": 7 }), "\"id\" is missing or not a string");
    }

    /// S8.16
    #[test]
    fn an_unverified_address_is_no_name() {
        let email = json!({ "claimMappings": { "username": { "claim": "email", "prefix": "" } } });
        let claims = |verified: Value| json!({ "email": "a@b", "email_verified": verified });
        check(&email, &claims(json!(true)), Ok(("a@b", &[])));
        check(&email, &json!({ "email": "a@b" }), Ok(("a@b", &[])));
        for wrong in [json!(false), json!("true"), json!(1)] {
            check(&email, &claims(wrong), Err("not verified"));
        }
        let by = |text: &str| json!({ "claimMappings": { "username": { "expression": text } } });
        let error = mapping(&by("claims.email")).unwrap_err().to_string();
        assert!(error.contains("email_verified must be used"), "{error}");
        mapping(&by("claims.email_verified ? claims.email : claims.sub")).unwrap();
        mapping(&by("claims.emails[0]")).unwrap();
    }

    #[test]
    fn expressions_are_checked_when_they_are_read() {
        for (change, expected) in [
            (json!({ "claimValidationRules": [{ "expression": "claims." }] }), "ERROR"),
            (json!({ "claimValidationRules": [{ "expression": "'x'" }] }), "must return bool"),
            (json!({ "userValidationRules": [{ "expression": "user.name == ''" }] }), "undefined"),
            (
                json!({ "userValidationRules": [{ "expression": "claims.sub == ''" }] }),
                "undeclared",
            ),
            (
                json!({ "claimMappings": { "username": { "expression": "1" } } }),
                "must return string",
            ),
        ] {
            let error = mapping(&change).unwrap_err().to_string();
            assert!(error.contains(expected) && error.starts_with("jwt[0]."), "{error}");
        }
    }
}
