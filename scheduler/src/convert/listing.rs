//! Who is there of one kind of objects, between its listings.

use std::collections::BTreeMap;

/// Who is there of one kind; `true` while a listing has not named it yet.
#[derive(Clone, Debug, Default)]
pub(super) struct ListedObjects {
    pub listed: bool,
    /// What is known may be older than what counts, until a listing that begins from now on
    /// has ended.
    pub behind: ListingState,
    pub names: BTreeMap<String, bool>,
}

/// Whether a listing is waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ListingState {
    #[default]
    No,
    /// It has not begun.
    Waits,
    /// It has.
    Lists,
}

impl ListedObjects {
    pub(super) fn begin(&mut self) {
        if self.behind == ListingState::Waits {
            self.behind = ListingState::Lists;
        }
        self.names.values_mut().for_each(|unnamed| *unnamed = true);
    }

    pub(super) fn there(&mut self, name: &str) {
        self.names.insert(name.to_owned(), false);
    }

    /// Who was not named.
    pub(super) fn end(&mut self) -> Vec<String> {
        self.listed = true;
        if self.behind == ListingState::Lists {
            self.behind = ListingState::No;
        }
        let gone = |(name, unnamed): (&String, &bool)| unnamed.then(|| name.clone());
        let gone: Vec<String> = self.names.iter().filter_map(gone).collect();
        self.names.retain(|_, unnamed| !*unnamed);
        gone
    }
}
