//! Functions of `authorizer`: they build an authorization check step by step.

use std::sync::Arc;

use super::{Found, other};
use crate::budget::Error;
use crate::eval::Machine;
use crate::value::authorizer::{
    Access, AccessedResource, Authority, Authorizer, Decision, Question,
};
use crate::value::{Other, Value};
use headwater_api::name;

/// The cost of a check: an expression can afford two.
const CHECK_COST: u64 = 350_000;

impl<'a> Value<'a> {
    /// The user of a request for this resource.
    pub fn authorizer(authority: Arc<dyn Authority>, request: AccessedResource) -> Value<'a> {
        other(Other::Authorizer(Authorizer { authority, account: None, request }))
    }
}

/// `authorizer.requestResource`.
pub(crate) fn field<'a>(of: &Other, field: &str) -> Found<'a> {
    match (of, field) {
        (Other::Authorizer(who), "requestResource") => {
            Ok(asked(who.clone(), Question::Resource(who.request.clone())))
        }
        _ => Err(Error::NoSuchOverload),
    }
}

fn asked<'a>(who: Authorizer, question: Question) -> Value<'a> {
    other(Other::Question(who, question))
}

pub(super) fn of_authorizer<'a>(name: &str, who: &Authorizer, rest: &[Value<'_>]) -> Found<'a> {
    let texts: Vec<&str> = rest.iter().filter_map(Value::as_text).collect();
    match (name, texts.as_slice()) {
        ("path", [path]) if path.trim().is_empty() => Err(Error::other("path must not be empty")),
        ("path", [path]) => Ok(asked(who.clone(), Question::Path((*path).to_owned()))),
        ("group", [group]) => Ok(asked(who.clone(), Question::Group((*group).to_owned()))),
        ("serviceAccount", [namespace, account]) => {
            if !name::subdomain(account).is_empty() {
                return Err(Error::other("Invalid service account name"));
            }
            if !name::label(namespace).is_empty() {
                return Err(Error::other("Invalid service account namespace"));
            }
            let account = Some(((*namespace).to_owned(), (*account).to_owned()));
            Ok(other(Other::Authorizer(Authorizer { account, ..who.clone() })))
        }
        _ => Err(Error::NoSuchOverload),
    }
}

pub(super) fn of_question<'a>(
    machine: &mut Machine<'a, '_>,
    name: &str,
    who: &Authorizer,
    question: &Question,
    rest: &[Value<'_>],
) -> Found<'a> {
    let [Value::Text(text)] = rest else { return Err(Error::NoSuchOverload) };
    let text = text.to_string();
    let next = |question| Ok(asked(who.clone(), question));
    match (name, question) {
        ("resource", Question::Group(_)) if text.trim().is_empty() => {
            Err(Error::other("resource must not be empty"))
        }
        ("resource", Question::Group(group)) => next(Question::Resource(AccessedResource {
            group: group.clone(),
            resource: text,
            ..AccessedResource::default()
        })),
        ("check", Question::Path(path)) => {
            decide(machine, who, &Access::Path { path: path.clone(), verb: text })
        }
        ("check", Question::Resource(resource)) => {
            decide(machine, who, &Access::Resource { resource: resource.clone(), verb: text })
        }
        (name, Question::Resource(resource)) => {
            let resource = resource.clone();
            next(Question::Resource(match name {
                "subresource" => AccessedResource { subresource: text, ..resource },
                "namespace" => AccessedResource { namespace: text, ..resource },
                "name" => AccessedResource { name: text, ..resource },
                "fieldSelector" => AccessedResource { field_selector: text, ..resource },
                "labelSelector" => AccessedResource { label_selector: text, ..resource },
                _ => return Err(Error::NoSuchOverload),
            }))
        }
        _ => Err(Error::NoSuchOverload),
    }
}

fn decide<'a>(machine: &mut Machine<'a, '_>, who: &Authorizer, access: &Access) -> Found<'a> {
    machine.budget.spend(CHECK_COST)?;
    let account = who.account.as_ref().map(|(namespace, name)| (&**namespace, &**name));
    Ok(other(Other::Decision(who.authority.decide(account, access))))
}

pub(super) fn of_decision<'a>(name: &str, decision: &Decision) -> Found<'a> {
    Ok(match name {
        "allowed" => decision.allowed.into(),
        "reason" => decision.reason.as_str().into(),
        "errored" => decision.error.is_some().into(),
        "error" => decision.error.as_deref().unwrap_or_default().into(),
        _ => return Err(Error::NoSuchOverload),
    })
}
