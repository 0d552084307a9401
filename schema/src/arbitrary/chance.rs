//! The random source: splitmix64 by Steele, Lea and Flood, written out because generators of libraries
//! promise their numbers for one version only, and a seed in a test's failure must stay good.

/// Gives numbers that follow from a seed.
#[derive(Debug, Clone)]
pub struct Chance {
    state: u64,
}

const WORDS: [&str; 8] = ["web", "db", "cache", "api", "blue", "green", "v1", "v2"];

impl Chance {
    /// The source of this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from 0, less than `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// An index of something of this length; 0 if it has none.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// A number of this range.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// A name.
    pub(super) fn word(&mut self) -> &'static str {
        self.pick(&WORDS)
    }

    /// A line that tries YAML's and the shell's patience.
    pub(super) fn text(&mut self) -> &'static str {
        self.pick(&["plain", "", "no", "1.10", "- a: b", "# x", "ä €😀", "a\nb", "\"'\\", "{{x}}", " tab\t"])
    }
}
