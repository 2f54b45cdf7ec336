//! The most that the evaluation of an expression can cost for one device.
//!
//! Kubernetes estimates steps, and its lists share memory. The interpreter here copies values, so
//! that what counts is their size: an expression of 242 characters doubles a list until the memory of
//! the machine is used up. The bound is computed from the expression and the size of the device
//! before anything is evaluated: each value that is made has a size, and making it, reading it and
//! walking it cost steps.

use super::subject::{Attribute, Subject};
use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use std::rc::Rc;

/// The most steps for one device: a step takes about 200 ns in a release build, so that this is
/// a millisecond. A test measures the dearest expressions.
pub(super) const MOST_STEPS: u64 = 5_000;
/// The most bytes of all values that are made for one device.
const MOST_BYTES: u64 = 1 << 20;
/// Nested parts of an expression. The parser has a limit of its own for parentheses and macros, and
/// none for `1 + 1 + 1 ...`. The interpreter recurses as deeply.
const DEEPEST: u32 = 200;
/// Parts that are looked at: a part in a loop is looked at twice, one in ten loops a thousand times.
const MOST_LOOKS: u32 = 20_000;
/// The memory of a value besides its text: its box, its type and its place in a list or map.
const VALUE: u64 = 64;
/// Bytes that are copied or compared in one step.
const BYTES_PER_STEP: u64 = 256;
/// The longest text that a number becomes: `%.100f` of the largest one.
const LONGEST_NUMBER: u64 = 512;

/// Costs of an evaluation, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Steps of about 200 ns.
    pub(super) steps: u64,
    /// Bytes of all values that are made.
    bytes: u64,
}

impl Cost {
    fn add(&mut self, other: Self, times: u64) {
        let sum = |a: u64, b: u64| a.saturating_add(b.saturating_mul(times));
        self.steps = sum(self.steps, other.steps);
        self.bytes = sum(self.bytes, other.bytes);
    }

    /// A step that makes a value of so many bytes, and reads so many.
    fn step(&mut self, made: u64, read: u64) {
        let walked = made.saturating_add(read) / BYTES_PER_STEP;
        self.steps = self.steps.saturating_add(walked).saturating_add(1);
        // A number is gone before the next one is made.
        self.bytes = self.bytes.saturating_add(made.saturating_sub(VALUE));
    }
}

/// The size of a value, at most.
#[derive(Clone, Debug)]
struct Size {
    /// With everything in it.
    bytes: u64,
    /// Elements of a list, entries of a map, or bytes of a text.
    len: u64,
    /// The largest element or entry; `None`: no larger than the whole.
    each: Option<Rc<Size>>,
    /// The largest key of a map, over which a loop runs; `None`: as `each`.
    key: Option<Rc<Size>>,
    /// The value of a number.
    number: u64,
}

impl Size {
    /// A number, a yes or no, or nothing.
    fn scalar() -> Self {
        Self::number(u64::MAX)
    }

    fn number(number: u64) -> Self {
        Self {
            number,
            ..Self::text(0)
        }
    }

    fn text(len: u64) -> Self {
        Self {
            bytes: len.saturating_add(VALUE),
            len,
            each: None,
            key: None,
            number: u64::MAX,
        }
    }

    fn list(len: u64, each: Size) -> Self {
        Self {
            bytes: len.saturating_mul(each.bytes).saturating_add(VALUE),
            len,
            each: Some(Rc::new(each)),
            key: None,
            number: u64::MAX,
        }
    }

    fn map(len: u64, key: Size, each: Size) -> Self {
        let entry = key.bytes.saturating_add(each.bytes);
        Self {
            bytes: len.saturating_mul(entry).saturating_add(VALUE),
            key: Some(Rc::new(key)),
            ..Self::list(len, each)
        }
    }

    fn element(&self) -> Size {
        self.each.as_deref().cloned().unwrap_or(Self {
            len: self.len.max(self.bytes / VALUE),
            ..self.clone()
        })
    }

    /// What the variable of a loop is.
    fn iterated(&self) -> Size {
        match &self.key {
            Some(key) => Self::clone(key),
            None => self.element(),
        }
    }

    /// A list with the elements of its lists, or of theirs.
    fn flat(&self) -> Size {
        let each = self.element();
        Self {
            // Each has at least the size of a value.
            len: self.bytes / VALUE,
            each: Some(Rc::new(each.element().or(&each))),
            ..self.clone()
        }
    }

    /// One of both.
    fn or(&self, other: &Self) -> Self {
        let either = |a: &Option<Rc<Self>>, b: &Option<Rc<Self>>| match (a, b) {
            (Some(a), Some(b)) => Some(Rc::new(a.or(b))),
            // A text or an empty list has no elements that a loop could read.
            (Some(one), None) if other.len == 0 => Some(Rc::clone(one)),
            (None, Some(one)) if self.len == 0 => Some(Rc::clone(one)),
            _ => None,
        };
        Self {
            bytes: self.bytes.max(other.bytes),
            len: self.len.max(other.len),
            each: either(&self.each, &other.each),
            key: either(&self.key, &other.key),
            number: self.number.max(other.number),
        }
    }

    /// Both, one after the other.
    fn and(&self, other: &Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            len: self.len.saturating_add(other.len),
            number: self.number.saturating_add(other.number),
            ..self.or(other)
        }
    }

    /// After `times` steps that each make it larger by what `step` is larger than it.
    fn grown(&self, step: &Self, times: u64) -> Self {
        let grow = |from: u64, to: u64| {
            let by = to.saturating_sub(from);
            to.max(from.saturating_add(by.saturating_mul(times)))
        };
        Self {
            bytes: grow(self.bytes, step.bytes),
            len: grow(self.len, step.len),
            ..self.or(step)
        }
    }
}

/// The size of `device` in an expression.
fn device(subject: Option<&Subject>) -> Size {
    let Some(subject) = subject else {
        let names = Size::map(0, Size::text(0), Size::text(0));
        return Size::map(4, Size::text(24), Size::map(0, Size::text(0), names));
    };
    let length = |text: &str| text.len() as u64;
    let names = subject.attributes.keys().chain(subject.capacity.keys());
    let key = names.map(|name| length(name)).max().unwrap_or_default();
    let key = Size::text(key.max(length(&subject.driver)));
    let texts = subject.attributes.values().map(|value| match value {
        Attribute::Text(text) | Attribute::Version(text) => length(text),
        Attribute::Int(_) | Attribute::Bool(_) | Attribute::Unknown => 0,
    });
    let value = Size::text(texts.max().unwrap_or_default());
    // Each may have a domain of its own, and the domains have them once all together.
    let count = subject.attributes.len().max(subject.capacity.len()) as u64;
    let of_domain = Size::map(count, key.clone(), value);
    let domains = Size {
        bytes: of_domain
            .bytes
            .saturating_add(count.saturating_mul(key.bytes)),
        ..Size::map(count.saturating_add(1), key, of_domain)
    };
    Size {
        bytes: domains.bytes.saturating_mul(2),
        ..Size::map(4, Size::text(24), domains)
    }
}

/// What the expression costs for that device; `None`: for one without attributes and capacity,
/// which is the least for any device.
///
/// # Errors
/// It may cost more than an expression may.
pub(super) fn of(expression: &IdedExpr, subject: Option<&Subject>) -> Result<Cost, String> {
    let mut estimate = Estimate {
        device: device(subject),
        names: Vec::new(),
        looks: MOST_LOOKS,
        deeper: DEEPEST,
    };
    let mut cost = Cost::default();
    estimate.part(expression, &mut cost)?;
    if cost.steps > MOST_STEPS {
        return Err(format!(
            "its CEL expression may cost more than {MOST_STEPS} steps for a device"
        ));
    }
    if cost.bytes > MOST_BYTES {
        return Err(format!(
            "its CEL expression may make values of more than {} KiB for a device",
            MOST_BYTES >> 10
        ));
    }
    Ok(cost)
}

struct Estimate<'e> {
    device: Size,
    /// Variables of binds and loops, the innermost last.
    names: Vec<(&'e str, Size)>,
    looks: u32,
    deeper: u32,
}

impl<'e> Estimate<'e> {
    /// The size of the part's value, and adds what it costs.
    fn part(&mut self, part: &'e IdedExpr, cost: &mut Cost) -> Result<Size, String> {
        let nested = "CEL compile error: it is nested too deeply";
        let looks = self.looks.checked_sub(1);
        self.looks = looks.ok_or("its CEL expression has too many loops within loops")?;
        self.deeper = self.deeper.checked_sub(1).ok_or(nested)?;
        let size = match &part.expr {
            Expr::Unspecified => Size::scalar(),
            Expr::Ident(name) => {
                // A variable is read where it is.
                cost.step(0, 0);
                self.variable(name)
            }
            Expr::Literal(value) => {
                cost.step(VALUE, 0);
                literal(value)
            }
            Expr::Select(select) => {
                let operand = self.part(&select.operand, cost)?;
                let field = operand.element();
                cost.step(0, field.bytes);
                field
            }
            Expr::List(list) => {
                let each = self.all(list.elements.iter(), cost)?;
                let mut size = Size::list(list.elements.len() as u64, largest(&each));
                size.bytes = sum(&each).saturating_add(VALUE);
                cost.step(size.bytes, 0);
                size
            }
            Expr::Map(map) => {
                let (mut keys, mut values) = (Vec::new(), Vec::new());
                for entry in &map.entries {
                    match &entry.expr {
                        EntryExpr::StructField(field) => {
                            values.push(self.part(&field.value, cost)?);
                        }
                        EntryExpr::MapEntry(entry) => {
                            keys.push(self.part(&entry.key, cost)?);
                            values.push(self.part(&entry.value, cost)?);
                        }
                    }
                }
                let len = map.entries.len() as u64;
                let mut size = Size::map(len, largest(&keys), largest(&values));
                size.bytes = sum(&keys)
                    .saturating_add(sum(&values))
                    .saturating_add(VALUE);
                cost.step(size.bytes, 0);
                size
            }
            // The environment has none.
            Expr::Struct(_) => Size::scalar(),
            Expr::Call(call) => self.call(call, cost)?,
            Expr::Comprehension(fold) => self.fold(fold, cost)?,
        };
        self.deeper += 1;
        Ok(size)
    }

    fn variable(&self, name: &str) -> Size {
        let named = self.names.iter().rev().find(|(one, _)| *one == name);
        match named {
            Some((_, size)) => size.clone(),
            None if name == "device" => self.device.clone(),
            None => Size::scalar(),
        }
    }

    fn all(
        &mut self,
        parts: impl Iterator<Item = &'e IdedExpr>,
        cost: &mut Cost,
    ) -> Result<Vec<Size>, String> {
        parts.map(|part| self.part(part, cost)).collect()
    }

    fn call(&mut self, call: &'e CallExpr, cost: &mut Cost) -> Result<Size, String> {
        let space = call.target.as_deref().and_then(namespace);
        if space.is_some_and(|space| self.names.iter().any(|(name, _)| *name == space)) {
            return Err("its CEL expression has a variable named as a part of CEL".to_owned());
        }
        let target = call.target.iter().map(|target| &**target);
        let target = target.filter(|_| space.is_none());
        let parts = self.all(target.chain(&call.args), cost)?;
        let nothing = Size::scalar();
        let at = |at: usize| parts.get(at).unwrap_or(&nothing);
        let (first, second) = (at(0), at(1));
        let read = sum(&parts);
        let walked = first.len.saturating_mul(second.len.saturating_add(1));
        let name = call.func_name.as_str();
        let qualified = space.map(|space| format!("{space}.{name}"));
        let (made, read) = match qualified.as_deref().unwrap_or(name) {
            // One of both, as it is.
            "_?_:_" => {
                cost.step(0, 0);
                return Ok(second.or(at(2)));
            }
            "_[_]" | "_[?_]" | "_?._" => {
                let element = first.element();
                cost.step(0, second.bytes.saturating_add(element.bytes));
                return Ok(element);
            }
            // `map` and `filter` append to one list.
            "_+_" if is_result(call.args.first()) => {
                cost.step(second.bytes, 0);
                return Ok(first.and(second));
            }
            "_&&_" | "_||_" | "!_" | "-_" => (Size::scalar(), 0),
            "_+_" => (first.and(second), read),
            "_-_" | "_*_" | "_/_" | "_%_" => (Size::scalar(), 0),
            "_==_" | "_!=_" | "_<_" | "_<=_" | "_>_" | "_>=_" => (Size::scalar(), read),
            "@in" | "contains" | "startsWith" | "endsWith" | "indexOf" | "lastIndexOf"
            | "includes" => (Size::scalar(), read),
            "size" => (Size::number(first.len), 0),
            "max" | "min" => (first.element(), read),
            // As a number, or texts that are joined.
            "sum" => (
                first.or(&Size::text(first.bytes)),
                first.bytes.saturating_mul(first.len),
            ),
            "slice" | "reverse" | "trim" | "substring" | "lowerAscii" => (first.clone(), read),
            // A character may be longer in the other case, or escaped.
            "upperAscii" | "strings.quote" | "bytes" => (
                Size::text(first.len.saturating_mul(6).saturating_add(2)),
                read,
            ),
            "sort" | "distinct" | "@sortByAssociatedKeys" => (
                first.clone(),
                read.saturating_mul(first.len.saturating_add(1)),
            ),
            "flatten" => (first.flat(), read),
            "sets.contains" | "sets.equivalent" | "sets.intersects" => (
                Size::scalar(),
                read.saturating_add(walked.saturating_mul(VALUE)),
            ),
            "lists.range" => (Size::list(first.number, Size::scalar()), 0),
            "charAt" => (Size::text(4), read),
            "split" => (
                Size::list(first.len.saturating_add(1), Size::text(first.len)),
                read,
            ),
            "join" => (
                Size::text(
                    first
                        .bytes
                        .saturating_add(first.len.saturating_mul(second.bytes)),
                ),
                read,
            ),
            "replace" => {
                let by = first.len.saturating_add(1).saturating_mul(at(2).len);
                (Size::text(first.len.saturating_add(by)), read)
            }
            "format" => {
                // A clause has two characters at least, and none uses an argument again.
                let numbers = (first.len / 2).saturating_mul(LONGEST_NUMBER);
                let texts = second.bytes.saturating_mul(6);
                (
                    Size::text(first.len.saturating_add(numbers).saturating_add(texts)),
                    read,
                )
            }
            "string" => (Size::text(first.len.saturating_add(LONGEST_NUMBER)), read),
            "matches" | "find" | "findAll" => {
                let pattern = call.args.last().filter(|_| call.func_name != "findAll");
                pattern_cost(pattern.or(call.args.first()), cost)?;
                let found = Size::text(first.len);
                let made = match call.func_name.as_str() {
                    "matches" => Size::scalar(),
                    "find" => found,
                    _ => Size::list(first.len.saturating_add(1), found),
                };
                (made, read.saturating_mul(4))
            }
            // The others make a number, a version, an amount or an optional of what they are given.
            _ => {
                let mut made = parts.iter().fold(Size::text(128), |all, one| all.and(one));
                made.number = u64::MAX;
                (made, read)
            }
        };
        cost.step(made.bytes, read);
        Ok(made)
    }

    /// A loop over a list or a map, or a bind, which is one over nothing.
    fn fold(&mut self, fold: &'e ComprehensionExpr, cost: &mut Cost) -> Result<Size, String> {
        let range = self.part(&fold.iter_range, cost)?;
        let before = self.part(&fold.accu_init, cost)?;
        let known = self.names.len();
        let after = if range.len == 0 {
            before
        } else {
            let mut one = Cost::default();
            let step = self.round(fold, &range, &before, &mut one)?;
            let after = before.grown(&step, range.len);
            let mut each = Cost::default();
            let last = self.round(fold, &range, &after, &mut each)?;
            // Each round adds the same: else the bound is none.
            let by = |from: &Size, to: &Size| to.bytes.saturating_sub(from.bytes);
            if by(&after, &last) > by(&before, &step) {
                return Err("its CEL expression makes values that grow without bound".to_owned());
            }
            cost.add(each, range.len);
            after
        };
        self.names.push((&fold.accu_var, after));
        let result = self.part(&fold.result, cost);
        self.names.truncate(known);
        let result = result?;
        cost.step(result.bytes, 0);
        Ok(result)
    }

    /// What one round of a loop makes of that value.
    fn round(
        &mut self,
        fold: &'e ComprehensionExpr,
        range: &Size,
        value: &Size,
        cost: &mut Cost,
    ) -> Result<Size, String> {
        let known = self.names.len();
        self.names.push((&fold.accu_var, value.clone()));
        self.names.push((&fold.iter_var, range.iterated()));
        if let Some(second) = &fold.iter_var2 {
            self.names.push((second, range.element()));
        }
        // The variable of a loop is a copy.
        cost.step(range.iterated().bytes, 0);
        self.part(&fold.loop_cond, cost)?;
        let step = self.part(&fold.loop_step, cost)?;
        self.names.truncate(known);
        Ok(step)
    }
}

/// A pattern is compiled at each use.
///
/// # Errors
/// It is larger than patterns may be, or is not written in the expression, so that its size is
/// known only when it is used.
fn pattern_cost(pattern: Option<&IdedExpr>, cost: &mut Cost) -> Result<(), String> {
    let Some(Expr::Literal(LiteralValue::String(text))) = pattern.map(|pattern| &pattern.expr)
    else {
        return Err("its CEL expression has a pattern that is no literal text".to_owned());
    };
    // By size of the compiled pattern: steps that this takes, as measured.
    for (size, steps) in [(1 << 13, 100), (1 << 16, 500), (1 << 18, 2_000)] {
        let compiled = regex::RegexBuilder::new(text.inner())
            .size_limit(size)
            .build();
        if !matches!(compiled, Err(regex::Error::CompiledTooBig(_))) {
            cost.steps = cost.steps.saturating_add(steps);
            return Ok(());
        }
    }
    Err("its CEL expression has a regular expression that is too large".to_owned())
}

/// Functions of CEL that are called as if they were of a value of that name.
fn namespace(target: &IdedExpr) -> Option<&str> {
    match &target.expr {
        Expr::Ident(name) => ["lists", "sets", "strings", "math", "optional"]
            .into_iter()
            .find(|space| space == name),
        _ => None,
    }
}

/// The list to which `map` and `filter` append; no expression can name it.
fn is_result(part: Option<&IdedExpr>) -> bool {
    part.is_some_and(|part| matches!(&part.expr, Expr::Ident(name) if name == "@result"))
}

fn literal(value: &LiteralValue) -> Size {
    match value {
        LiteralValue::String(text) => Size::text(text.inner().len() as u64),
        LiteralValue::Bytes(bytes) => Size::text(bytes.inner().len() as u64),
        LiteralValue::Int(number) => {
            Size::number(u64::try_from(*number.inner()).unwrap_or_default())
        }
        LiteralValue::UInt(number) => Size::number(*number.inner()),
        LiteralValue::Boolean(_) | LiteralValue::Double(_) | LiteralValue::Null => Size::scalar(),
    }
}

fn sum(all: &[Size]) -> u64 {
    all.iter()
        .fold(0, |sum: u64, one| sum.saturating_add(one.bytes))
}

fn largest(all: &[Size]) -> Size {
    let mut all = all.iter();
    let first = all.next().cloned().unwrap_or_else(|| Size::text(0));
    all.fold(first, |largest, one| largest.or(one))
}
