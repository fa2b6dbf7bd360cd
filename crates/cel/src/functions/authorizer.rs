//! Functions of `authorizer`: they build an authorization check step by step.

use std::sync::Arc;

use crate::budget::{Error, Machine};
use crate::estimate::rule;
use crate::value::authorizer::{
    Access, AccessedResource, Authority, Authorizer, Decision, Question,
};
use crate::value::{Other, Value};
use headwater_api::name;

/// The cost of a check: an expression can afford two.
const CHECK: u64 = 350_000;

rows! {
    "Authorizer.path(string) -> PathCheck", rule::ONE,
        |_, who: authorizer, path: text| asked(who, Question::Path(filled("path", path)?));
    "Authorizer.group(string) -> GroupCheck", rule::ONE,
        |_, who: authorizer, group: text| asked(who, Question::Group(group.to_owned()));
    "Authorizer.serviceAccount(string,string) -> Authorizer", rule::ONE,
        |_, who: authorizer, namespace: text, account: text|
            Other::Authorizer(service_account(who, namespace, account)?);
    "GroupCheck.resource(string) -> ResourceCheck", rule::ONE, |_, of: question, resource: text| {
        let (who, Question::Group(group)) = of else { return Err(Error::NoSuchOverload) };
        let (group, resource) = (group.clone(), filled("resource", resource)?);
        let resource = AccessedResource { group, resource, ..AccessedResource::default() };
        asked(who, Question::Resource(resource))
    };
    "ResourceCheck.subresource(string) -> ResourceCheck", rule::ONE,
        |_, of: question, text: text| narrowed(of, text, |resource| &mut resource.subresource)?;
    "ResourceCheck.namespace(string) -> ResourceCheck", rule::ONE,
        |_, of: question, text: text| narrowed(of, text, |resource| &mut resource.namespace)?;
    "ResourceCheck.name(string) -> ResourceCheck", rule::ONE,
        |_, of: question, text: text| narrowed(of, text, |resource| &mut resource.name)?;
    "ResourceCheck.fieldSelector(string) -> ResourceCheck", rule::SELECTOR,
        |_, of: question, text: text| narrowed(of, text, |resource| &mut resource.field_selector)?;
    "ResourceCheck.labelSelector(string) -> ResourceCheck", rule::SELECTOR,
        |_, of: question, text: text| narrowed(of, text, |resource| &mut resource.label_selector)?;
    "ResourceCheck.check(string) -> Decision" "PathCheck.check(string) -> Decision",
        rule::fixed::<CHECK>, |m, of: question, verb: text| Other::Decision(decide(m, of, verb)?);
    "Decision.allowed() -> bool", rule::ONE, |_, of: decision| of.allowed;
    "Decision.reason() -> string", rule::ONE, |_, of: decision| of.reason.as_str();
    "Decision.errored() -> bool", rule::ONE, |_, of: decision| of.error.is_some();
    "Decision.error() -> string", rule::ONE,
        |_, of: decision| of.error.as_deref().unwrap_or_default();
}

impl<'a> Value<'a> {
    /// The user of a request for this resource.
    pub fn authorizer(authority: Arc<dyn Authority>, request: AccessedResource) -> Value<'a> {
        Other::Authorizer(Authorizer { authority, account: None, request }).into()
    }
}

/// `authorizer.requestResource`.
pub(crate) fn field<'a>(of: &Other, field: &str) -> Result<Value<'a>, Error> {
    match (of, field) {
        (Other::Authorizer(who), "requestResource") => {
            Ok(asked(who, Question::Resource(who.request.clone())).into())
        }
        _ => Err(Error::NoSuchOverload),
    }
}

fn asked(who: &Authorizer, question: Question) -> Other {
    Other::Question(who.clone(), question)
}

fn filled(what: &str, text: &str) -> Result<String, Error> {
    match text.trim().is_empty() {
        true => Err(Error::other(format!("{what} must not be empty"))),
        false => Ok(text.to_owned()),
    }
}

fn service_account(who: &Authorizer, namespace: &str, account: &str) -> Result<Authorizer, Error> {
    if !name::subdomain(account).is_empty() {
        return Err(Error::other("Invalid service account name"));
    }
    if !name::label(namespace).is_empty() {
        return Err(Error::other("Invalid service account namespace"));
    }
    let account = Some((namespace.to_owned(), account.to_owned()));
    Ok(Authorizer { account, ..who.clone() })
}

/// The check with one more word about the resource.
fn narrowed(
    (who, question): (&Authorizer, &Question),
    text: &str,
    word: fn(&mut AccessedResource) -> &mut String,
) -> Result<Other, Error> {
    let Question::Resource(mut resource) = question.clone() else {
        return Err(Error::NoSuchOverload);
    };
    *word(&mut resource) = text.to_owned();
    Ok(asked(who, Question::Resource(resource)))
}

fn decide(
    m: &mut Machine<'_, '_>,
    (who, question): (&Authorizer, &Question),
    verb: &str,
) -> Result<Decision, Error> {
    let verb = verb.to_owned();
    let access = match question.clone() {
        Question::Path(path) => Access::Path { path, verb },
        Question::Resource(resource) => Access::Resource { resource, verb },
        Question::Group(_) => return Err(Error::NoSuchOverload),
    };
    m.spend(CHECK)?;
    let account = who.account.as_ref().map(|(namespace, name)| (&**namespace, &**name));
    Ok(who.authority.decide(account, &access))
}
