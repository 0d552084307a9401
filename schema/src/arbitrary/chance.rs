//! Random source: splitmix64 by Steele, Lea and Flood. Implemented here because library generators guarantee their
//! numbers for one version only, and the seed in a test's failure must stay reproducible.

/// Deterministic generator of numbers from a seed.
#[derive(Debug, Clone)]
pub struct Chance {
    state: u64,
}

const WORDS: [&str; 8] = ["web", "db", "cache", "api", "blue", "green", "v1", "v2"];

impl Chance {
    /// Creates a generator from a seed.
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

    /// Returns a number in `0..bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Returns an index into a collection of this length; 0 if it is empty.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns a number from `least` to `most`, inclusive.
    pub(super) fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// True once in `times` calls, on average.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Picks one of `choices`.
    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    pub(super) fn word(&mut self) -> &'static str {
        self.pick(&WORDS)
    }

    /// Returns a text that is hard to quote in YAML and in the shell.
    pub(super) fn text(&mut self) -> &'static str {
        self.pick(&["plain", "", "no", "1.10", "- a: b", "# x", "ä €😀", "a\nb", "\"'\\", "{{x}}", " tab\t"])
    }
}
