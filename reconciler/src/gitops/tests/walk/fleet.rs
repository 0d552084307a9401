//! Random changes to a repository: its intended files, and those that are broken.

use std::collections::{BTreeMap, BTreeSet};

use schema::arbitrary::arbitrary_object_of;
use schema::kinds::Kind;
use schema::manifest::load_file;
use schema::meta::ObjectRef;

use super::super::kit::Files;

/// Number of possible group names.
const NAMES: u32 = 90;
/// Typical number of groups: enough that a third of their objects exceeds the budget.
const GROUPS: usize = 45;

/// An object of some kind, with the objects that it refers to.
#[derive(Debug, Clone)]
struct Group {
    kind: Kind,
    seed: u64,
    file: String,
}

/// A repository: the intended content and the actual one.
pub(super) struct Fleet {
    /// Groups by the number in their name.
    groups: BTreeMap<u32, Group>,
    /// Content of the files that can't be read.
    broken: BTreeMap<String, String>,
    random: Box<dyn FnMut(u32) -> u32 + Send>,
    /// Changes since the last commit, for messages.
    pub(super) done: Vec<String>,
}

/// Number of the Cluster object, of which only one may exist.
const CLUSTER: u32 = NAMES;

impl Fleet {
    pub(super) fn new(random: impl FnMut(u32) -> u32 + Send + 'static) -> Self {
        let mut fleet =
            Self { groups: BTreeMap::new(), broken: BTreeMap::new(), random: Box::new(random), done: vec![] };
        (0..GROUPS).for_each(|_| fleet.create());
        fleet
    }

    pub(super) fn below(&mut self, bound: u32) -> u32 {
        (self.random)(bound)
    }

    /// True if some file can't be read.
    pub(super) fn is_broken(&self) -> bool {
        !self.broken.is_empty()
    }

    /// The intended files.
    fn whole(&self) -> Files {
        let mut files = Files::new();
        for (number, group) in &self.groups {
            let text = files.entry(group.file.clone()).or_default();
            if !text.is_empty() {
                text.push_str("---\n");
            }
            text.push_str(&arbitrary_object_of(group.kind, &format!("x{number}"), group.seed));
        }
        files
    }

    /// The files as they are, including the broken ones.
    pub(super) fn files(&self) -> Files {
        let mut files = self.whole();
        files.insert("README.md".to_owned(), "# Ours\n".to_owned());
        // The secret that arbitrary targets of notifications name.
        let ciphertext = "age-encryption.org/v1\n-> X25519 abc\n--- mac\n";
        files.insert("secrets/.notifications/ops.age".to_owned(), ciphertext.to_owned());
        files.extend(self.broken.clone());
        files
    }

    /// Intended objects, whether their file can be read or not.
    pub(super) fn meant(&self) -> BTreeSet<ObjectRef> {
        let files = self.whole().into_iter();
        files
            .flat_map(|(path, text)| load_file(&path, text.as_bytes()).documents)
            .map(|document| document.object.reference())
            .collect()
    }

    /// Makes one to four changes.
    pub(super) fn edit(&mut self) {
        self.done.clear();
        for _ in 0..=self.below(4) {
            match self.below(24) {
                0..=4 if self.groups.len() < GROUPS + 10 => self.create(),
                5..=9 => self.change(),
                10..=11 => self.move_file(),
                12 => self.move_group(),
                13 => self.rename(),
                14 => self.change_kind(),
                15..=16 => self.delete(),
                17 => self.delete_file(),
                18..=19 => self.break_file(),
                20..=22 => self.repair(),
                // Replaces most groups by fresh ones, which deletes more than the budget allows.
                23 if self.below(4) == 0 => self.replace_most(),
                _ => self.create(),
            }
        }
    }

    /// Makes every file readable again.
    pub(super) fn repair_all(&mut self) {
        self.broken.clear();
    }

    fn say(&mut self, what: String) {
        self.done.push(what);
    }

    fn any_group(&mut self) -> Option<u32> {
        let at = self.below(u32::try_from(self.groups.len()).unwrap().max(1));
        self.groups.keys().nth(at as usize).copied()
    }

    fn any_file(&mut self) -> Option<String> {
        let files: BTreeSet<String> = self.groups.values().map(|group| group.file.clone()).collect();
        let at = self.below(u32::try_from(files.len()).unwrap().max(1));
        files.into_iter().nth(at as usize)
    }

    /// Chooses an existing file or a new one.
    fn place(&mut self) -> String {
        let folder = ["", "apps/", "apps/blue/", "z/"][self.below(4) as usize];
        format!("{folder}f{}.yaml", self.below(20))
    }

    fn create(&mut self) {
        let mut number = self.below(NAMES);
        let kind = Kind::ALL[self.below(u32::try_from(Kind::ALL.len()).unwrap()) as usize];
        if kind == Kind::Cluster {
            number = CLUSTER;
        }
        if self.groups.contains_key(&number) {
            return;
        }
        let group = Group { kind, seed: self.below(u32::MAX).into(), file: self.place() };
        self.say(format!("create {kind} x{number} in {}", group.file));
        self.groups.insert(number, group);
    }

    fn change(&mut self) {
        let (Some(number), seed) = (self.any_group(), self.below(u32::MAX)) else { return };
        self.say(format!("change x{number}"));
        self.groups.entry(number).and_modify(|group| group.seed = seed.into());
    }

    fn move_file(&mut self) {
        let (Some(from), to) = (self.any_file(), self.place()) else { return };
        self.say(format!("move {from} to {to}"));
        self.groups
            .values_mut()
            .filter(|group| group.file == from)
            .for_each(|group| group.file.clone_from(&to));
    }

    fn move_group(&mut self) {
        let (Some(number), to) = (self.any_group(), self.place()) else { return };
        self.say(format!("move x{number} to {to}"));
        self.groups.entry(number).and_modify(|group| group.file = to);
    }

    fn rename(&mut self) {
        let (Some(from), to) = (self.any_group(), self.below(NAMES)) else { return };
        if from == CLUSTER || self.groups.contains_key(&to) {
            return;
        }
        self.say(format!("rename x{from} to x{to}"));
        let group = self.groups.remove(&from).unwrap();
        self.groups.insert(to, group);
    }

    fn change_kind(&mut self) {
        let (Some(number), at) = (self.any_group(), self.below(u32::try_from(Kind::ALL.len()).unwrap()))
        else {
            return;
        };
        let kind = Kind::ALL[at as usize];
        if number == CLUSTER || kind == Kind::Cluster {
            return;
        }
        self.say(format!("make x{number} a {kind}"));
        self.groups.entry(number).and_modify(|group| group.kind = kind);
    }

    fn delete(&mut self) {
        let Some(number) = self.any_group() else { return };
        self.say(format!("delete x{number}"));
        self.groups.remove(&number);
    }

    fn delete_file(&mut self) {
        let Some(file) = self.any_file() else { return };
        self.say(format!("delete {file}"));
        self.groups.retain(|_, group| group.file != file);
        self.broken.remove(&file);
    }

    fn replace_most(&mut self) {
        self.say("delete most".to_owned());
        let mut kept = BTreeMap::new();
        for (number, group) in std::mem::take(&mut self.groups) {
            if self.below(4) == 0 {
                kept.insert(number, group);
            }
        }
        self.groups = kept;
        (0..GROUPS / 2).for_each(|_| self.create());
    }

    /// Breaks a file so that nothing in it can be relied on.
    fn break_file(&mut self) {
        let Some(file) = self.any_file() else { return };
        let Some(mut text) = self.whole().remove(&file) else { return };
        for _ in 0..20 {
            let at = self.below(u32::try_from(text.len()).unwrap()) as usize;
            let at = (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap();
            let wound = ["\0", "\n\t- }{", "\nspce: {}\n", "<<<<<<< HEAD\n"][self.below(4) as usize];
            let mut broken = text.clone();
            broken.insert_str(at, wound);
            // Within a multi-line string, some of these are just more text.
            if load_file(&file, broken.as_bytes()).has_errors() {
                text = broken;
                self.say(format!("break {file}"));
                self.broken.insert(file, text);
                return;
            }
        }
    }

    fn repair(&mut self) {
        let at = self.below(u32::try_from(self.broken.len()).unwrap().max(1));
        let Some(file) = self.broken.keys().nth(at as usize).cloned() else { return };
        self.say(format!("repair {file}"));
        self.broken.remove(&file);
    }
}
