//! Links from a pod's page to logs and dashboards, by templates of the admin. Pure.

use std::str::FromStr;

/// Names that a template may have in braces.
const NAMES: [&str; 5] = ["namespace", "name", "uid", "node", "queue"];

/// A link: `Logs=https://grafana.example/explore?ns={namespace}&pod={name}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageLink {
    /// Its text.
    pub(crate) name: String,
    template: String,
}

impl FromStr for PageLink {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, template) = text
            .split_once('=')
            .filter(|(name, _)| !name.trim().is_empty())
            .ok_or_else(|| format!("`{text}` is not NAME=URL"))?;
        // Any other scheme, such as javascript:, would run with the reader's rights.
        if !["https://", "http://"]
            .iter()
            .any(|scheme| template.starts_with(scheme))
        {
            return Err(format!(
                "the URL of {name} must begin with https:// or http://"
            ));
        }
        for part in template.split('{').skip(1) {
            let key = part.split('}').next().unwrap_or_default();
            if !NAMES.contains(&key) || !part.contains('}') {
                let known = NAMES.map(|name| format!("{{{name}}}")).join(", ");
                return Err(format!("the URL of {name} has `{{{key}`: use {known}"));
            }
        }
        Ok(Self {
            name: name.trim().to_owned(),
            template: template.to_owned(),
        })
    }
}

impl PageLink {
    /// The URL for these values. They are percent-encoded, because tenants choose them.
    pub(crate) fn of(&self, values: &[(&str, String)]) -> String {
        let mut url = self.template.clone();
        for (key, value) in values {
            let value: String = form_urlencoded::byte_serialize(value.as_bytes()).collect();
            url = url.replace(&format!("{{{key}}}"), &value);
        }
        url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_becomes_a_link_and_a_value_cannot_leave_its_place() {
        let link: PageLink = "Logs=https://g.example/e?ns={namespace}&pod={name}"
            .parse()
            .unwrap();
        let values = [
            ("namespace", "a".to_owned()),
            ("name", "x&pod=y/../{uid}".to_owned()),
        ];
        assert_eq!(
            link.of(&values),
            "https://g.example/e?ns=a&pod=x%26pod%3Dy%2F..%2F%7Buid%7D"
        );
    }

    #[test]
    fn a_template_that_would_not_work_is_refused_with_the_fix() {
        for (text, words) in [
            ("https://x", "is not NAME=URL"),
            ("=https://x", "is not NAME=URL"),
            ("Logs=javascript:alert(1)", "must begin with https://"),
            ("Logs=https://x/{pod}", "use {namespace}, {name}"),
            ("Logs=https://x/{name", "use {namespace}, {name}"),
        ] {
            let error = text.parse::<PageLink>().unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
