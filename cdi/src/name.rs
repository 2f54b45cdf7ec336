//! The grammar of CDI names: `vendor/class=device`.
//!
//! Text comes in, checked names go out. The rules are those of the upstream library's
//! parser, so that a name that passes here is one that a runtime resolves.

use std::fmt;
use std::str::FromStr;

/// `vendor/class`, checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    vendor: String,
    class: String,
}

/// `vendor/class=device`, checked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QualifiedName {
    kind: Kind,
    device: String,
}

/// Which part of a name breaks which rule. The caller skips the name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// `vendor/class` without a slash, or `vendor/class=device` without `=`.
    #[error("{name:?} lacks {separator:?}")]
    Separator {
        /// The whole name.
        name: String,
        /// The missing character.
        separator: char,
    },
    /// A part is empty.
    #[error("the {part} is empty")]
    Empty {
        /// "vendor", "class" or "device".
        part: &'static str,
    },
    /// A part does not start or end as it must, or has a character it must not have.
    #[error("{character:?} is not allowed {place} the {part} {text:?}")]
    Character {
        /// "vendor", "class" or "device".
        part: &'static str,
        /// "in", "at the start of" or "at the end of".
        place: &'static str,
        /// The offender.
        character: char,
        /// The whole part.
        text: String,
    },
}

impl Kind {
    /// From its two parts.
    ///
    /// # Errors
    /// A part that the grammar does not allow.
    pub fn new(vendor: &str, class: &str) -> Result<Self, NameError> {
        check_part("vendor", vendor, |c| c.is_ascii_alphabetic(), "_-.")?;
        check_part("class", class, |c| c.is_ascii_alphabetic(), "_-.")?;
        Ok(Self {
            vendor: vendor.to_owned(),
            class: class.to_owned(),
        })
    }

    /// The vendor, by custom a domain.
    pub fn vendor(&self) -> &str {
        &self.vendor
    }

    /// The class of devices.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// A device of this kind.
    ///
    /// # Errors
    /// A device name that the grammar does not allow.
    pub fn device(&self, device: &str) -> Result<QualifiedName, NameError> {
        check_device(device)?;
        Ok(QualifiedName {
            kind: self.clone(),
            device: device.to_owned(),
        })
    }
}

impl QualifiedName {
    /// `vendor/class`.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The name within its kind.
    pub fn device(&self) -> &str {
        &self.device
    }
}

impl FromStr for Kind {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (vendor, class) = text.split_once('/').ok_or_else(|| NameError::Separator {
            name: text.to_owned(),
            separator: '/',
        })?;
        Self::new(vendor, class)
    }
}

impl FromStr for QualifiedName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (kind, device) = text.split_once('=').ok_or_else(|| NameError::Separator {
            name: text.to_owned(),
            separator: '=',
        })?;
        kind.parse::<Kind>()?.device(device)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vendor, self.class)
    }
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind, self.device)
    }
}

/// Letters, digits and `_-.:` within; a letter or digit at both ends.
pub(crate) fn check_device(device: &str) -> Result<(), NameError> {
    check_part("device", device, |c| c.is_ascii_alphanumeric(), "_-.:")
}

/// A part starts as `first` says, ends with a letter or digit, and has nothing within but
/// letters, digits and `extra`.
fn check_part(
    part: &'static str,
    text: &str,
    first: impl Fn(char) -> bool,
    extra: &str,
) -> Result<(), NameError> {
    let refused = |place, character| NameError::Character {
        part,
        place,
        character,
        text: text.to_owned(),
    };
    let (Some(start), Some(end)) = (text.chars().next(), text.chars().next_back()) else {
        return Err(NameError::Empty { part });
    };
    if !first(start) {
        return Err(refused("at the start of", start));
    }
    if let Some(bad) = text
        .chars()
        .find(|c| !c.is_ascii_alphanumeric() && !extra.contains(*c))
    {
        return Err(refused("in", bad));
    }
    if !end.is_ascii_alphanumeric() {
        return Err(refused("at the end of", end));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_are_taken_and_refused_as_upstream_does() {
        for good in [
            "aliquot.dev/grant=0123456789abcdef0123456789abcdef",
            "nvidia.com/gpu=all",
            "nvidia.com/gpu=0",
            "nvidia.com/gpu=GPU-4e2b1f0a-0000-1111-2222-333344445555",
            "k8s.device-plugin.nvidia.com/gpu=mig0:1",
            "v/c.d=x",
        ] {
            assert_eq!(good.parse::<QualifiedName>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "nvidia.com/gpu",
            "nvidia.com=0",
            "/gpu=0",
            "nvidia.com/=0",
            "nvidia.com/gpu=",
            "1nvidia.com/gpu=0",
            "nvidia.com/1gpu=0",
            "nvidia.com-/gpu=0",
            "nvidia.com/gpu-=0",
            "nvidia.com/gpu=0-",
            "nvidia.com/gpu=-0",
            "nvidia.com/gpu=a b",
            "nvidia.com/gpu=a/b",
            "nvidia.com/gp:u=0",
            "nvidia.com/gpu=é",
        ] {
            assert!(bad.parse::<QualifiedName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_error_names_part_and_character() {
        let error = "nvidia.com/gpu=a b".parse::<QualifiedName>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "' ' is not allowed in the device \"a b\""
        );
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back_alike(
            vendor in "[a-zA-Z]([a-zA-Z0-9_.-]{0,20}[a-zA-Z0-9])?",
            class in "[a-zA-Z]([a-zA-Z0-9_.-]{0,20}[a-zA-Z0-9])?",
            device in "[a-zA-Z0-9]([a-zA-Z0-9_.:-]{0,40}[a-zA-Z0-9])?",
        ) {
            let name = Kind::new(&vendor, &class).unwrap().device(&device).unwrap();
            prop_assert_eq!(name.to_string().parse::<QualifiedName>().unwrap(), name);
        }

        #[test]
        fn no_text_is_a_panic_and_none_passes_with_a_path_in_its_device(text in ".{0,60}") {
            if let Ok(name) = text.parse::<QualifiedName>() {
                prop_assert!(!name.device().contains('/'));
                prop_assert!(!name.device().starts_with('.'));
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }
}
