//! Semantic versions in expressions (`k8s.io/apiserver/pkg/cel/library/semverlib.go`, over
//! `blang/semver`).

use cel::common::types::{CelBool, CelInt, CelString, Type};
use cel::common::value::{StaticVal, Val};
use cel::{DeclarationError, Env, ExecutionError, add_member_overload, add_overload};
use std::any::Any;
use std::cmp::Ordering;

static TYPE: Type = Type::new_unspecified_type("kubernetes.Semver");

/// A version; what its build is called does not order it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    numbers: [u64; 3],
    pre: Vec<Identifier>,
}

/// An identifier after the numbers: numeric ones sort before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Word(String),
}

impl Version {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (text, build) = match text.split_once('+') {
            Some((text, build)) => (text, Some(build)),
            None => (text, None),
        };
        let (numbers, pre) = match text.split_once('-') {
            Some((numbers, pre)) => (numbers, Some(pre)),
            None => (text, None),
        };
        let mut parts = numbers.split('.').map(number);
        let numbers = [parts.next()??, parts.next()??, parts.next()??];
        let is_word = |part: &str| {
            let mut chars = part.chars();
            !part.is_empty() && chars.all(|c| c.is_ascii_alphanumeric() || c == '-')
        };
        let builds = build.into_iter().flat_map(|build| build.split('.'));
        if parts.next().is_some() || !builds.into_iter().all(is_word) {
            return None;
        }
        let identifier = |part: &str| {
            if !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) {
                return number(part).map(Identifier::Number);
            }
            is_word(part).then(|| Identifier::Word(part.to_owned()))
        };
        let pre = pre.into_iter().flat_map(|pre| pre.split('.'));
        let pre = pre.map(identifier).collect::<Option<_>>()?;
        Some(Self { numbers, pre })
    }

    /// With a `v` before it, with missing numbers, and with leading zeros.
    fn normalized(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(['-', '+']).unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let mut numbers: Vec<&str> = numbers
            .split('.')
            .map(|number| match number.trim_start_matches('0') {
                "" if !number.is_empty() => "0",
                number => number,
            })
            .collect();
        // A version with something behind its numbers has all of them.
        if numbers.len() < 3 && !rest.is_empty() {
            return None;
        }
        while numbers.len() < 3 {
            numbers.push("0");
        }
        Self::parse(&format!("{}{rest}", numbers.join(".")))
    }
}

/// Digits without a leading zero.
fn number(text: &str) -> Option<u64> {
    let is_minimal = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| is_minimal)
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let released = |version: &Self| version.pre.is_empty();
        self.numbers
            .cmp(&other.numbers)
            .then(released(self).cmp(&released(other)))
            .then_with(|| self.pre.cmp(&other.pre))
    }
}

impl Val for Version {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>() == Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Version {}

pub(super) fn extension(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_type(TYPE.to_owned())?;
    add_overload!(env, fn semver: (CelString) -> Result<Version>)?;
    add_overload!(env, fn semver_of: (CelString, CelBool) -> Result<Version>, name = "semver")?;
    add_overload!(env, fn is_semver: (CelString) -> CelBool)?;
    add_overload!(env, fn is_semver_of: (CelString, CelBool) -> CelBool, name = "isSemver")?;
    add_member_overload!(env, fn is_greater_than: (Version, Version) -> CelBool)?;
    add_member_overload!(env, fn is_less_than: (Version, Version) -> CelBool)?;
    add_member_overload!(env, fn compare_to: (Version, Version) -> CelInt)?;
    add_member_overload!(env, fn major: (Version) -> Result<CelInt>)?;
    add_member_overload!(env, fn minor: (Version) -> Result<CelInt>)?;
    add_member_overload!(env, fn patch: (Version) -> Result<CelInt>)?;
    Ok(())
}

fn read(text: &CelString<'_>, normalize: bool) -> Option<Version> {
    if normalize {
        Version::normalized(text.inner())
    } else {
        Version::parse(text.inner())
    }
}

fn semver(text: &CelString<'_>) -> Result<Version, ExecutionError> {
    semver_of(text, &false.into())
}

fn semver_of(text: &CelString<'_>, normalize: &CelBool) -> Result<Version, ExecutionError> {
    read(text, *normalize.inner())
        .ok_or_else(|| ExecutionError::function_error("semver", "it is no semantic version"))
}

fn is_semver(text: &CelString<'_>) -> CelBool {
    read(text, false).is_some().into()
}

fn is_semver_of(text: &CelString<'_>, normalize: &CelBool) -> CelBool {
    read(text, *normalize.inner()).is_some().into()
}

fn is_greater_than(this: &Version, other: &Version) -> CelBool {
    (this > other).into()
}

fn is_less_than(this: &Version, other: &Version) -> CelBool {
    (this < other).into()
}

fn compare_to(this: &Version, other: &Version) -> CelInt {
    (this.cmp(other) as i64).into()
}

fn part(version: &Version, which: usize) -> Result<CelInt, ExecutionError> {
    let number = version.numbers.get(which).copied().unwrap_or_default();
    let number = i64::try_from(number).map(CelInt::from);
    number.map_err(|_| ExecutionError::function_error("semver", "a number is too large"))
}

fn major(this: &Version) -> Result<CelInt, ExecutionError> {
    part(this, 0)
}

fn minor(this: &Version) -> Result<CelInt, ExecutionError> {
    part(this, 1)
}

fn patch(this: &Version) -> Result<CelInt, ExecutionError> {
    part(this, 2)
}
