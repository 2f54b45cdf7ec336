//! Each object has one table, which says how each of its fields is written in the object's line.
//! The macro [`fields`] makes the reader and the writer from the table.

use super::line::{Line, Read};
use super::value::Value;
use crate::model::{DeviceTaint, NodeTerm, Taint};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

/// A row of a table implements this: it reads and writes a field of type `T`.
pub(super) trait Field<T> {
    fn read(&self, line: &Line) -> Read<T>;

    fn write(&self, value: &T, line: &mut Line);
}

/// The macro [`fields`] implements this for an object with a table. An enum has no table, and
/// implements it by hand.
pub(super) trait Object: Sized {
    fn read(line: &Line) -> Read<Self>;

    fn write(&self, line: &mut Line);
}

/// Makes the reader and the writer of an object. The rows have the order in which the fields are
/// written; the name of the object comes first. The compiler refuses a table that lacks a field.
macro_rules! fields {
    ($type:ident, $usual:ident = $value:expr, { $($field:ident: $how:expr,)* }) => {
        impl Object for $type {
            fn read(line: &Line) -> Read<Self> {
                let $usual = $value;
                Ok(Self { $($field: $how.read(line)?,)* })
            }

            fn write(&self, line: &mut Line) {
                let $usual = $value;
                let Self { $($field,)* } = self;
                $($how.write($field, line);)*
            }
        }
    };
    ($type:ident { $($rows:tt)* }) => {
        fields!($type, _usual = (), { $($rows)* });
    };
}
pub(super) use fields;

pub(super) fn line_of(kind: &str, object: &impl Object) -> Line {
    let mut line = Line::of_kind(kind);
    object.write(&mut line);
    line
}

/// A pointer to an object is written as the object.
impl<T: Object, P: From<T> + Deref<Target = T>> Object for P {
    fn read(line: &Line) -> Read<Self> {
        T::read(line).map(Self::from)
    }

    fn write(&self, line: &mut Line) {
        (**self).write(line);
    }
}

/// The field is written as `name=value`.
pub(super) struct Key<T> {
    name: &'static str,
    /// A line without the key has this value.
    usual: Option<T>,
    /// If this is set, the usual value is written too.
    always: bool,
}

impl<T> Key<T> {
    fn new(name: &'static str, usual: Option<T>, always: bool) -> Self {
        Self {
            name,
            usual,
            always,
        }
    }
}

/// The key is left out if the value is the type's default.
pub(super) fn key<T: Default>(name: &'static str) -> Key<T> {
    or(name, T::default())
}

/// The key is left out if the value is the usual one.
pub(super) fn or<T>(name: &'static str, usual: T) -> Key<T> {
    Key::new(name, Some(usual), false)
}

/// The key is always written, and a line without it is refused.
pub(super) fn needed<T>(name: &'static str) -> Key<T> {
    Key::new(name, None, true)
}

/// The key is always written, and a line without it has the type's default.
pub(super) fn always<T: Default>(name: &'static str) -> Key<T> {
    always_or(name, T::default())
}

/// The key is always written, and a line without it has the usual value.
pub(super) fn always_or<T>(name: &'static str, usual: T) -> Key<T> {
    Key::new(name, Some(usual), true)
}

impl<T: Value + Clone + PartialEq> Field<T> for Key<T> {
    fn read(&self, line: &Line) -> Read<T> {
        let value = line.value(self.name)?.or_else(|| self.usual.clone());
        value.ok_or_else(|| line.error(format!("{} is missing", self.name)))
    }

    fn write(&self, value: &T, line: &mut Line) {
        if self.always || self.usual.as_ref() != Some(value) {
            line.push_pair(self.name, value.text());
        }
    }
}

/// The field is the word after the kind of the line.
pub(super) struct Name;

impl<T: Value> Field<T> for Name {
    fn read(&self, line: &Line) -> Read<T> {
        line.parsed(line.kind(), line.name(1)?)
    }

    fn write(&self, value: &T, line: &mut Line) {
        line.push_word(value.text());
    }
}

/// The field is the name in lines of this kind; lines of another kind have no name.
pub(super) struct NameIn(pub(super) &'static str);

impl<T: Value> Field<Option<T>> for NameIn {
    fn read(&self, line: &Line) -> Read<Option<T>> {
        let named = line.kind() == self.0;
        named.then(|| Name.read(line)).transpose()
    }

    fn write(&self, value: &Option<T>, line: &mut Line) {
        if line.kind() == self.0 {
            line.push_word(value.text());
        }
    }
}

/// The field is written as `key=value`, unless the value follows from the rest of the line.
pub(super) struct Else<T>(pub(super) &'static str, pub(super) fn(&Line) -> Read<T>);

impl<T: Value + PartialEq> Field<T> for Else<T> {
    fn read(&self, line: &Line) -> Read<T> {
        let value = line.value(self.0).transpose();
        value.unwrap_or_else(|| self.1(line))
    }

    fn write(&self, value: &T, line: &mut Line) {
        if self.1(line).as_ref() != Ok(value) {
            line.push_pair(self.0, value.text());
        }
    }
}

pub(super) fn same_as_name<T: Value>(key: &'static str) -> Else<T> {
    Else(key, |line| Name.read(line))
}

/// The field has the first value if the word is there, and else the second.
pub(super) struct Flag<T>(pub(super) &'static str, pub(super) T, pub(super) T);

pub(super) fn flag(word: &'static str) -> Flag<bool> {
    Flag(word, true, false)
}

pub(super) fn not(word: &'static str) -> Flag<bool> {
    Flag(word, false, true)
}

impl<T: Clone + PartialEq> Field<T> for Flag<T> {
    fn read(&self, line: &Line) -> Read<T> {
        let there = line.flag(self.0);
        Ok(if there { &self.1 } else { &self.2 }.clone())
    }

    fn write(&self, value: &T, line: &mut Line) {
        if *value == self.1 {
            line.push_word(self.0);
        }
    }
}

/// The word is there if the field is `Some`.
pub(super) struct When<F>(pub(super) &'static str, pub(super) F);

impl<T, F: Field<T>> Field<Option<T>> for When<F> {
    fn read(&self, line: &Line) -> Read<Option<T>> {
        let there = line.flag(self.0);
        there.then(|| self.1.read(line)).transpose()
    }

    fn write(&self, value: &Option<T>, line: &mut Line) {
        if let Some(value) = value {
            line.push_word(self.0);
            self.1.write(value, line);
        }
    }
}

/// Each value is written as `key=value`.
pub(super) struct All(pub(super) &'static str);

impl<C> Field<C> for All
where
    C: IntoIterator<Item: Value> + FromIterator<C::Item>,
    for<'a> &'a C: IntoIterator<Item = &'a C::Item>,
{
    fn read(&self, line: &Line) -> Read<C> {
        let values = line.all(self.0).map(|text| line.parsed(self.0, text));
        values.collect()
    }

    fn write(&self, values: &C, line: &mut Line) {
        for value in values {
            line.push_pair(self.0, value.text());
        }
    }
}

/// Each entry is written as `prefix.key=value`.
pub(super) struct Map(pub(super) &'static str);

impl<K: Value + Ord, V: Value> Field<BTreeMap<K, V>> for Map {
    fn read(&self, line: &Line) -> Read<BTreeMap<K, V>> {
        let entries = line.prefixed(self.0).map(|(key, text)| {
            let full = format!("{}.{key}", self.0);
            Ok((line.parsed(&full, key)?, line.parsed(&full, text)?))
        });
        entries.collect()
    }

    fn write(&self, entries: &BTreeMap<K, V>, line: &mut Line) {
        for (key, value) in entries {
            line.push_pair(format!("{}.{}", self.0, key.text()), value.text());
        }
    }
}

/// Each taint is written as `prefix.key=value:Effect`.
pub(super) struct Taints(pub(super) &'static str);

macro_rules! taints {
    ($($type:ident)*) => {$(
        impl Field<Vec<$type>> for Taints {
            fn read(&self, line: &Line) -> Read<Vec<$type>> {
                let taints = line.prefixed(self.0).map(|(key, text)| {
                    let (value, effect) = text.rsplit_once(':').unwrap_or(("", text));
                    Ok($type {
                        key: Arc::from(key),
                        value: Arc::from(value),
                        effect: line.parsed(key, effect)?,
                    })
                });
                taints.collect()
            }

            fn write(&self, taints: &Vec<$type>, line: &mut Line) {
                for $type { key, value, effect } in taints {
                    line.push_pair(
                        format!("{}.{key}", self.0),
                        format!("{value}:{}", effect.text()),
                    );
                }
            }
        }
    )*};
}

taints!(DeviceTaint Taint);

/// The field is an object with a table of its own, which is written in the same line.
pub(super) struct Whole;

impl<T: Object> Field<T> for Whole {
    fn read(&self, line: &Line) -> Read<T> {
        T::read(line)
    }

    fn write(&self, value: &T, line: &mut Line) {
        value.write(line);
    }
}

/// The object is written as by [`Whole`]. It is there if the line has one of these keys.
pub(super) struct Present(pub(super) &'static [&'static str]);

impl<T: Object> Field<Option<T>> for Present {
    fn read(&self, line: &Line) -> Read<Option<T>> {
        let there = self.0.iter().any(|key| line.get(key).is_some());
        there.then(|| T::read(line)).transpose()
    }

    fn write(&self, value: &Option<T>, line: &mut Line) {
        if let Some(value) = value {
            value.write(line);
        }
    }
}

/// Each object is an indented line of this kind.
pub(super) struct Below(pub(super) &'static str);

impl<T: Object, C: FromIterator<T> + Deref<Target = [T]>> Field<C> for Below {
    fn read(&self, line: &Line) -> Read<C> {
        let objects = line.below(self.0).map(|below| {
            let object = T::read(below)?;
            below.finish()?;
            Ok(object)
        });
        objects.collect()
    }

    fn write(&self, objects: &C, line: &mut Line) {
        let lines = objects.iter().map(|object| line_of(self.0, object));
        line.below.extend(lines);
    }
}

/// Each entry is an indented line of this kind, with its key as the name of the line.
pub(super) struct BelowMap<F>(pub(super) &'static str, pub(super) F);

impl<K: Value + Ord, V, F: Field<V>> Field<BTreeMap<K, V>> for BelowMap<F> {
    fn read(&self, line: &Line) -> Read<BTreeMap<K, V>> {
        let entries = line.below(self.0).map(|below| {
            let entry = (Name.read(below)?, self.1.read(below)?);
            below.finish()?;
            Ok(entry)
        });
        entries.collect()
    }

    fn write(&self, entries: &BTreeMap<K, V>, line: &mut Line) {
        for (key, value) in entries {
            let mut below = Line::of_kind(self.0);
            Name.write(key, &mut below);
            self.1.write(value, &mut below);
            line.below.push(below);
        }
    }
}

/// Each term is written as `term=`. The word `no-term` stands for an empty list.
pub(super) struct Terms;

impl<C: FromIterator<NodeTerm> + Deref<Target = [NodeTerm]>> Field<Option<C>> for Terms {
    fn read(&self, line: &Line) -> Read<Option<C>> {
        let none = line.flag("no-term");
        let terms: Vec<NodeTerm> = All("term").read(line)?;
        Ok((none || !terms.is_empty()).then(|| terms.into_iter().collect()))
    }

    fn write(&self, terms: &Option<C>, line: &mut Line) {
        if let Some(terms) = terms {
            flag("no-term").write(&terms.is_empty(), line);
            All("term").write(&terms.to_vec(), line);
        }
    }
}

/// The field is not written, and has this value when it is read.
pub(super) struct Apart<T>(pub(super) T);

impl<T: Clone> Field<T> for Apart<T> {
    fn read(&self, _: &Line) -> Read<T> {
        Ok(self.0.clone())
    }

    fn write(&self, _: &T, _: &mut Line) {}
}
