//! Files import each other in one direction.
//!
//! Files that import each other, directly or through others, are a circle: none of them can be
//! read, tested or moved alone. This test reads the sources of each crate, computes which file
//! imports from which, and fails on any circle.
//!
//! An import is a path, in `use` or in code, to a name that another file of the crate defines. A
//! re-export counts for the file behind it. A declaration `mod x;` is no import, and code under
//! `#[cfg(test)]` is not read.
#![expect(clippy::unwrap_used, reason = "a test from its first line to its last")]

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::visit::Visit;
use syn::{Attribute, ImplItem, Item, Token, UseTree};

/// The names of a path: as the source writes it, or of a module from the root of its crate.
type Names = Vec<String>;
/// The files of a crate and their text.
type Sources = BTreeMap<PathBuf, String>;
/// For each file, the files that it imports from, with the names.
type Imports = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

/// A module is a file or a part of one in braces.
#[derive(Default)]
struct Module {
    file: PathBuf,
    /// The names that the module itself defines, without those of other modules.
    definitions: BTreeSet<String>,
    /// The paths that `use` brings in, by the name that they have here.
    uses: BTreeMap<String, BTreeSet<Names>>,
    /// The modules of which `use` brings in all names, with `*`.
    globs: BTreeSet<Names>,
    /// The paths of two names or more in its code.
    paths: BTreeSet<Names>,
}

/// The target of a path.
enum Target {
    /// The module that defines its last name, or the type before it.
    Definition(Names),
    Module(Names),
    /// Another crate, a local name, or nothing.
    Outside,
}

struct Crate<'s> {
    sources: &'s Sources,
    modules: BTreeMap<Names, Module>,
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute
                .parse_args::<syn::Path>()
                .is_ok_and(|condition| condition.is_ident("test"))
    })
}

fn attributes_and_name(item: &Item) -> (&[Attribute], Option<String>) {
    use syn::{
        ItemConst, ItemEnum, ItemExternCrate, ItemFn, ItemForeignMod, ItemImpl, ItemMacro, ItemMod,
        ItemStatic, ItemStruct, ItemTrait, ItemTraitAlias, ItemType, ItemUnion, ItemUse,
    };
    match item {
        Item::Const(ItemConst { attrs, ident, .. })
        | Item::Enum(ItemEnum { attrs, ident, .. })
        | Item::ExternCrate(ItemExternCrate { attrs, ident, .. })
        | Item::Static(ItemStatic { attrs, ident, .. })
        | Item::Struct(ItemStruct { attrs, ident, .. })
        | Item::Trait(ItemTrait { attrs, ident, .. })
        | Item::TraitAlias(ItemTraitAlias { attrs, ident, .. })
        | Item::Type(ItemType { attrs, ident, .. })
        | Item::Union(ItemUnion { attrs, ident, .. }) => (attrs, Some(ident.to_string())),
        Item::Fn(ItemFn { attrs, sig, .. }) => (attrs, Some(sig.ident.to_string())),
        Item::Macro(ItemMacro { attrs, ident, .. }) => {
            (attrs, ident.as_ref().map(ToString::to_string))
        }
        Item::ForeignMod(ItemForeignMod { attrs, .. })
        | Item::Impl(ItemImpl { attrs, .. })
        | Item::Mod(ItemMod { attrs, .. })
        | Item::Use(ItemUse { attrs, .. }) => (attrs, None),
        _ => (&[], None),
    }
}

impl Module {
    fn read_use(&mut self, before: &Names, tree: &UseTree) {
        let with = |ident: &dyn ToString| {
            let mut path = before.clone();
            path.push(ident.to_string());
            path
        };
        match tree {
            UseTree::Path(path) => self.read_use(&with(&path.ident), &path.tree),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.read_use(before, tree);
                }
            }
            UseTree::Glob(_) => {
                self.globs.insert(before.clone());
            }
            UseTree::Name(name) if name.ident == "self" => {
                let alias = before.last().unwrap().clone();
                self.uses.entry(alias).or_default().insert(before.clone());
            }
            UseTree::Name(name) => {
                let uses = self.uses.entry(name.ident.to_string()).or_default();
                uses.insert(with(&name.ident));
            }
            UseTree::Rename(name) => {
                let path = if name.ident == "self" {
                    before.clone()
                } else {
                    with(&name.ident)
                };
                let uses = self.uses.entry(name.rename.to_string()).or_default();
                uses.insert(path);
            }
        }
    }

    /// Reads the paths among the tokens of a macro call.
    fn read_tokens(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        while !input.is_empty() {
            let group;
            if input.peek(syn::token::Paren) {
                syn::parenthesized!(group in input);
                self.read_tokens(&group)?;
            } else if input.peek(syn::token::Bracket) {
                syn::bracketed!(group in input);
                self.read_tokens(&group)?;
            } else if input.peek(syn::token::Brace) {
                syn::braced!(group in input);
                self.read_tokens(&group)?;
            } else if input.peek(syn::Ident::peek_any) {
                let mut path = vec![input.call(syn::Ident::parse_any)?.to_string()];
                while input.peek(Token![::]) && input.peek3(syn::Ident::peek_any) {
                    input.parse::<Token![::]>()?;
                    path.push(input.call(syn::Ident::parse_any)?.to_string());
                }
                self.paths.insert(path);
            } else {
                input.step(|cursor| Ok(((), cursor.token_tree().unwrap().1)))?;
            }
        }
        Ok(())
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast Item) {
        if !matches!(item, Item::Mod(_)) && !is_of_tests(attributes_and_name(item).0) {
            syn::visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs[..],
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            _ => &[],
        };
        if !is_of_tests(attributes) {
            syn::visit::visit_impl_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.read_use(&Names::new(), &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|part| part.ident.to_string());
            self.paths.insert(names.collect());
        }
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        call.parse_body_with(|input: ParseStream<'_>| self.read_tokens(input))
            .unwrap();
        syn::visit::visit_macro(self, call);
    }
}

impl<'s> Crate<'s> {
    fn read(sources: &'s Sources, root: &Path) -> Self {
        let mut read = Crate {
            sources,
            modules: BTreeMap::new(),
        };
        read.file(Names::new(), root, root.parent().unwrap());
        read
    }

    fn file(&mut self, module: Names, file: &Path, folder: &Path) {
        let text = self.sources.get(file);
        let text = text.unwrap_or_else(|| panic!("{} is not there", file.display()));
        let items = syn::parse_file(text).unwrap().items;
        self.module(module, file, folder, &items);
    }

    /// Reads a module, and then those below it, whose files are in `folder`.
    fn module(&mut self, name: Names, file: &Path, folder: &Path, items: &[Item]) {
        let mut module = Module {
            file: file.to_owned(),
            ..Module::default()
        };
        for item in items {
            module.visit_item(item);
            module.definitions.extend(attributes_and_name(item).1);
        }
        self.modules.insert(name.clone(), module);
        for item in items {
            let Item::Mod(inner) = item else { continue };
            if is_of_tests(&inner.attrs) {
                continue;
            }
            let (mut below, ident) = (name.clone(), inner.ident.to_string());
            let inner_folder = folder.join(&ident);
            below.push(ident);
            match &inner.content {
                Some((_, items)) => self.module(below, file, &inner_folder, items),
                None => {
                    let own = inner_folder.with_extension("rs");
                    let face = inner_folder.join("mod.rs");
                    let is_own = self.sources.contains_key(&own);
                    self.file(below, if is_own { &own } else { &face }, &inner_folder);
                }
            }
        }
    }

    /// Returns the target of a path in the code of `module`, over at most `hops` imports.
    fn target(&self, module: &Names, path: &[String], hops: usize) -> Target {
        let Some(hops) = hops.checked_sub(1) else {
            return Target::Outside;
        };
        let mut start = module.clone();
        let mut rest = path;
        match path[0].as_str() {
            "crate" => {
                start.clear();
                rest = &path[1..];
            }
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    start.pop();
                    rest = &rest[1..];
                }
            }
            _ => return self.named(start, rest, hops),
        }
        // A macro may define a name that is not in the text.
        match self.named(start.clone(), rest, hops) {
            Target::Outside => Target::Definition(start),
            target => target,
        }
    }

    /// Returns the target of a path whose first name is one of `module`'s.
    fn named(&self, mut module: Names, path: &[String], hops: usize) -> Target {
        let Some((name, rest)) = path.split_first() else {
            return Target::Module(module);
        };
        let here = &self.modules[&module];
        if rest.is_empty() && here.definitions.contains(name) {
            return Target::Definition(module);
        }
        let mut below = module.clone();
        below.push(name.clone());
        let is_module = self.modules.contains_key(&below);
        if is_module && !rest.is_empty() {
            return match self.named(below.clone(), rest, hops) {
                Target::Outside => Target::Definition(below),
                target => target,
            };
        }
        if here.definitions.contains(name) {
            return Target::Definition(module);
        }
        let mut is_used = false;
        for used in here.uses.get(name).into_iter().flatten() {
            is_used = true;
            let whole: Names = used.iter().chain(rest).cloned().collect();
            match self.target(&module, &whole, hops) {
                Target::Outside => {}
                target => return target,
            }
        }
        if is_module {
            module.push(name.clone());
            return Target::Module(module);
        }
        for glob in &here.globs {
            if let Target::Module(glob) = self.target(&module, glob, hops)
                && glob != module
                && let Some(hops) = hops.checked_sub(1)
            {
                match self.named(glob, path, hops) {
                    Target::Outside => {}
                    target => return target,
                }
            }
        }
        if is_used {
            // Another crate's name belongs to the file that re-exports it.
            Target::Definition(module)
        } else {
            Target::Outside
        }
    }

    fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for (name, module) in &self.modules {
            let from = imports.entry(module.file.clone()).or_default();
            let mut import = |to: &Names, path: &Names| {
                let to = &self.modules[to].file;
                if *to != module.file {
                    let names = from.entry(to.clone()).or_default();
                    names.insert(path.last().unwrap().clone());
                }
            };
            let uses = module.uses.values().flatten();
            for path in uses.chain(&module.paths) {
                if let Target::Definition(to) = self.target(name, path, 16) {
                    import(&to, path);
                }
            }
            for glob in &module.globs {
                match self.target(name, glob, 16) {
                    Target::Definition(to) | Target::Module(to) => import(&to, glob),
                    Target::Outside => {}
                }
            }
        }
        imports
    }
}

/// Returns the circles: sets of files, each of which reaches every other of its set.
fn circles(imports: &Imports) -> BTreeSet<BTreeSet<PathBuf>> {
    let reached = |from: &PathBuf| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            let new = imports[file].keys().filter(|to| reached.insert(*to));
            next.extend(new.collect::<Vec<_>>());
        }
        reached
    };
    let reached: BTreeMap<_, _> = imports.keys().map(|file| (file, reached(file))).collect();
    let of = |file: &PathBuf| -> BTreeSet<PathBuf> {
        let others = reached[file]
            .iter()
            .filter(|to| reached[**to].contains(file));
        others.map(|to| (*to).clone()).collect()
    };
    let circles = imports.keys().map(of);
    circles.filter(|circle| !circle.is_empty()).collect()
}

/// Returns the folder that holds all files of a circle.
fn folder(circle: &BTreeSet<PathBuf>) -> &Path {
    let first = circle.first().unwrap();
    first
        .ancestors()
        .find(|folder| *folder != first && circle.iter().all(|file| file.starts_with(folder)))
        .unwrap()
}

/// Returns the imports that tie a circle, a line each.
fn ties(circle: &BTreeSet<PathBuf>, imports: &Imports) -> String {
    let mut lines = String::new();
    for from in circle {
        for (to, names) in imports[from].iter().filter(|(to, _)| circle.contains(*to)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let (from, to, names) = (from.display(), to.display(), names.join(", "));
            writeln!(lines, "  {from} -> {to}: {names}").unwrap();
        }
    }
    lines
}

/// The root files of each crate below its `src` folder, by its name and folder.
fn crates() -> Vec<(String, PathBuf, Vec<PathBuf>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps"])
        .arg("--offline")
        .current_dir(root)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |package: &Value| {
        let name = package["name"].as_str().unwrap().to_owned();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let folder = manifest.parent().unwrap().to_owned();
        let targets = package["targets"].as_array().unwrap().iter();
        let roots = targets.map(|target| {
            let root = Path::new(target["src_path"].as_str().unwrap());
            root.strip_prefix(&folder).unwrap().to_owned()
        });
        let roots = roots.filter(|root| root.starts_with("src")).collect();
        (name, folder, roots)
    };
    metadata["packages"]
        .as_array()
        .unwrap()
        .iter()
        .map(of)
        .collect()
}

/// Reads the files of `folder` and of those below it, by their path from `root`.
fn read(root: &Path, folder: &Path, sources: &mut Sources) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(root, &path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            sources.insert(path.strip_prefix(root).unwrap().to_owned(), text);
        }
    }
}

#[test]
fn no_crate_has_a_circle_of_files() {
    let mut found = String::new();
    for (name, folder_of_crate, roots) in crates() {
        let mut sources = Sources::new();
        read(&folder_of_crate, &folder_of_crate.join("src"), &mut sources);
        assert!(!roots.is_empty(), "{name} has no sources");
        for root in roots {
            let imports = Crate::read(&sources, &root).imports();
            for circle in circles(&imports) {
                let (files, folder) = (circle.len(), folder(&circle));
                writeln!(
                    found,
                    "{name} has a circle of {files} files in {}:\n{}",
                    folder.display(),
                    ties(&circle, &imports)
                )
                .unwrap();
            }
        }
    }
    assert!(found.is_empty(), "{found}");
}

/// The circles of a made-up crate, each as its files.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let source = |(file, text): &(&str, &str)| (PathBuf::from(file), (*text).to_owned());
    let sources = files.iter().map(source).collect();
    let imports = Crate::read(&sources, Path::new("src/lib.rs")).imports();
    let names = |circle: BTreeSet<PathBuf>| {
        let names = circle.iter().map(|file| file.display().to_string());
        names.collect()
    };
    circles(&imports).into_iter().map(names).collect()
}

#[test]
fn a_circle_is_found_through_a_re_export() {
    let lib = ("src/lib.rs", "mod face; mod user;");
    let face = ("src/face/mod.rs", "mod leaf; pub(crate) use leaf::Leaf;");
    let user = ("src/user.rs", "pub(crate) struct User(crate::face::Leaf);");
    let back = (
        "src/face/leaf.rs",
        "use crate::user; pub(crate) struct Leaf(Box<user::User>);",
    );
    let circle = vec!["src/face/leaf.rs".to_owned(), "src/user.rs".to_owned()];
    assert_eq!(circles_of(&[lib, face, user, back]), [circle]);

    let straight = ("src/face/leaf.rs", "pub(crate) struct Leaf;");
    assert_eq!(
        circles_of(&[lib, face, user, straight]),
        Vec::<Vec<String>>::new()
    );
}

#[test]
fn a_circle_is_found_in_macro_calls_and_through_globs() {
    let lib = ("src/lib.rs", "mod a; mod b;");
    let macro_call = (
        "src/a.rs",
        "pub(crate) fn one() { println!(\"{}\", [crate::b::two()]) }",
    );
    let glob = (
        "src/b.rs",
        "use super::a::*; pub(crate) fn two() -> u8 { one(); 2 }",
    );
    let circle = vec!["src/a.rs".to_owned(), "src/b.rs".to_owned()];
    assert_eq!(circles_of(&[lib, macro_call, glob]), [circle]);
}

#[test]
fn declarations_and_unit_tests_are_no_imports() {
    let face = (
        "src/lib.rs",
        "mod leaf; pub fn shown() -> u8 { leaf::one() }",
    );
    let leaf = (
        "src/leaf.rs",
        "pub(crate) fn one() -> u8 { 1 }
         #[cfg(test)]
         mod tests { use crate::shown; }
         #[cfg(test)]
         use crate::shown;",
    );
    assert_eq!(circles_of(&[face, leaf]), Vec::<Vec<String>>::new());
}
