//! Rejected, forged and expired tokens (B072).

use headwater_json::{Value, json};

use super::claims::{Bound, Reference};
use super::*;

pub(super) fn issuer() -> Issuer {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    Issuer::new(&Secret::new(key.serialize_pem())).unwrap()
}

pub(super) fn claims() -> Claims {
    Claims {
        aud: vec![ISSUER.into()],
        exp: 2000,
        iat: 1000,
        iss: ISSUER.into(),
        jti: "j".into(),
        kubernetes: Bound {
            namespace: "n".into(),
            serviceaccount: Reference { name: "s".into(), uid: "u".into() },
            ..Bound::default()
        },
        nbf: 1000,
        sub: "system:serviceaccount:n:s".into(),
    }
}

/// A token with any header, and the signature that our key makes for it.
fn signed(issuer: &Issuer, header: &Value, claims: &Value) -> String {
    let message = format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
    let signature = issuer.key.sign(&issuer.random, message.as_bytes()).unwrap();
    format!("{message}.{}", encoded(signature))
}

#[test]
fn a_token_reads_as_it_was_signed_first_and_from_the_cache() {
    let issuer = issuer();
    let token = issuer.sign(&claims()).unwrap();
    for _ in 0..2 {
        assert_eq!(*issuer.verify(&token).unwrap(), claims());
    }
}

#[test]
fn the_claims_have_the_names_of_the_standard() {
    let token = issuer().sign(&claims()).unwrap();
    let part = token.split('.').nth(1).unwrap();
    let value: Value = serde_json::from_slice(&decoded(part).unwrap()).unwrap();
    let expected = json!({
        "aud": [ISSUER], "exp": 2000, "iat": 1000, "iss": ISSUER, "jti": "j",
        "kubernetes.io": {"namespace": "n", "serviceaccount": {"name": "s", "uid": "u"}},
        "nbf": 1000, "sub": "system:serviceaccount:n:s",
    });
    assert_eq!(value, expected);
}

/// B072
#[test]
fn a_token_never_chooses_its_algorithm_or_its_key() {
    let issuer = issuer();
    let claims = headwater_json::to_value(&claims()).unwrap();
    let id = &issuer.id;
    let check = |header: Value, expected: bool| {
        let token = signed(&issuer, &header, &claims);
        assert_eq!(issuer.verify(&token).is_ok(), expected, "{header}");
    };
    check(json!({"alg": "ES256", "kid": id}), true);
    check(json!({"alg": "ES256", "kid": id, "typ": "JWT"}), true);
    check(json!({"alg": "ES256"}), true);
    check(json!({"alg": "none", "kid": id}), false);
    check(json!({"alg": "HS256", "kid": id}), false);
    check(json!({"alg": "RS256", "kid": id}), false);
    check(json!({"alg": "es256", "kid": id}), false);
    check(json!({"kid": id}), false);
    check(json!({"alg": "ES256", "kid": "../../etc/passwd"}), false);
    check(json!({"alg": "ES256", "kid": ""}), false);
    check(json!({"alg": "ES256", "kid": id, "crit": ["exp"]}), false);
}

#[test]
fn a_signature_that_is_missing_changed_or_of_another_key_is_refused() {
    let (ours, theirs) = (issuer(), issuer());
    let token = ours.sign(&claims()).unwrap();
    let (message, signature) = token.rsplit_once('.').unwrap();
    let (header, _) = message.split_once('.').unwrap();
    let mut other = claims();
    other.sub = "system:serviceaccount:kube-system:admin".into();
    let forged = encoded(serde_json::to_vec(&other).unwrap());
    let hmac = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, ours.key.public_key().as_ref());
    let keyed = encoded(ring::hmac::sign(&hmac, message.as_bytes()));
    for wrong in [
        message.to_owned(),
        format!("{message}."),
        format!("{header}.{forged}.{signature}"),
        format!("{message}.{keyed}"),
        format!("{message}.{}", encoded([0; 64])),
        format!("{message}.{signature}="),
        format!("{message}.{signature}.{signature}"),
        format!(" {token}"),
        theirs.sign(&claims()).unwrap(),
        String::new(),
        "..".into(),
        "a".repeat(TOKEN_BYTES_MAX + 1),
    ] {
        assert_eq!(ours.verify(&wrong).unwrap_err(), Refused::Foreign, "{wrong}");
    }
    assert!(ours.verify(&token).is_ok());
}

#[test]
fn signed_claims_of_another_format_or_issuer_are_rejected() {
    let issuer = issuer();
    let header = json!({"alg": "ES256", "kid": issuer.id});
    let good = headwater_json::to_value(&claims()).unwrap();
    for (key, value) in [
        ("iss", json!("https://elsewhere")),
        ("iss", json!(null)),
        ("exp", json!("tomorrow")),
        ("aud", json!(ISSUER)),
        ("kubernetes.io", json!({})),
    ] {
        let mut changed = good.clone();
        changed[key] = value.clone();
        let token = signed(&issuer, &header, &changed);
        assert!(issuer.verify(&token).is_err(), "{key}: {value}");
    }
    let mut huge = good;
    huge["padding"] = "x".repeat(TOKEN_BYTES_MAX).into();
    assert!(issuer.verify(&signed(&issuer, &header, &huge)).is_err());
}

#[test]
fn a_token_is_valid_only_in_its_time() {
    #[track_caller]
    fn check(now: i64, expected: bool) {
        let now = jiff::Timestamp::from_second(now).unwrap();
        assert_eq!(claims().check_time(now).is_ok(), expected);
    }
    check(900, false);
    check(940, true);
    check(1999, true);
    check(2000, false);
}

#[test]
fn neither_the_key_nor_a_token_is_printed() {
    let issuer = issuer();
    let token = issuer.sign(&claims()).unwrap();
    issuer.verify(&token).unwrap();
    let shown = format!("{issuer:?}");
    assert!(!shown.contains(&token) && shown.len() < 200, "{shown}");
}

#[test]
fn a_key_of_another_kind_is_refused() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    assert!(Issuer::new(&Secret::new(key.serialize_pem())).is_err());
    assert!(Issuer::new(&Secret::new("not a key".to_owned())).is_err());
}
