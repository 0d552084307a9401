//! Versions of iptables print some rules otherwise than they were written; without this a loop would write them
//! for ever. Pure. A change by others must not pass for a spelling: a chain is in doubt only when it reads otherwise
//! than the text written last, with as many rules. It is written once more, and is a spelling if it reads the
//! same again right after. An empty chain is never one.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::chain::ChainRef;
use super::saved::Words;

/// A chain's rules in a form that can be compared.
pub trait ChainText: Clone + PartialEq {
    /// How many rules they are.
    fn rules(&self) -> usize;
}

impl ChainText for Vec<Words> {
    fn rules(&self) -> usize {
        self.len()
    }
}

/// By chain: what was written, and what is printed then.
pub type KnownSpellings<T> = BTreeMap<ChainRef, (T, T)>;

/// Chains that may have another spelling: how they were printed before they were written once more.
pub type Doubts<T> = BTreeMap<ChainRef, T>;

/// What was written, and how this iptables prints it.
#[derive(Debug)]
pub struct Spellings<T> {
    written: BTreeMap<ChainRef, T>,
    known: Arc<KnownSpellings<T>>,
}

impl<T> Default for Spellings<T> {
    fn default() -> Self {
        Self { written: BTreeMap::new(), known: Arc::default() }
    }
}

impl<T: ChainText> Spellings<T> {
    /// All that are known.
    pub fn known(&self) -> Arc<KnownSpellings<T>> {
        Arc::clone(&self.known)
    }

    /// The chain was written while it was as `there` says. Notes if that may be another spelling.
    pub fn wrote(&mut self, chain: &ChainRef, text: T, there: Option<&T>, doubts: &mut Doubts<T>) {
        if let Some(there) = there.filter(|there| may_be_spelling(&text, there))
            && self.written.get(chain) == Some(&text)
        {
            doubts.insert(chain.clone(), there.clone());
        }
        self.written.insert(chain.clone(), text);
    }

    /// The chain is gone.
    pub fn dropped(&mut self, chain: &ChainRef) {
        self.written.remove(chain);
        if self.known.contains_key(chain) {
            Arc::make_mut(&mut self.known).remove(chain);
        }
    }

    /// Learns from a read that was made directly after the write, with no other change in between.
    pub fn learn<'a>(&mut self, doubts: Doubts<T>, printed: impl Fn(&ChainRef) -> Option<&'a T>)
    where
        T: 'a,
    {
        for (chain, before) in doubts {
            let Some(written) = self.written.get(&chain) else { continue };
            if printed(&chain) == Some(&before) && may_be_spelling(written, &before) {
                tracing::info!(%chain, "this iptables prints the rules of the chain in another spelling");
                Arc::make_mut(&mut self.known).insert(chain, (written.clone(), before));
            }
        }
    }
}

/// Not the same, but as many rules, and not none.
fn may_be_spelling<T: ChainText>(written: &T, printed: &T) -> bool {
    written != printed && written.rules() == printed.rules() && printed.rules() > 0
}

/// Only this agent has changed rules since `before`, if its write took this many
/// [`loud_steps`](crate::worlds::iptables::loud_steps). Where the kernel does not count this is assumed: the time
/// in between is a moment.
pub fn only_we_wrote(before: Option<u32>, steps: u32, after: Option<u32>) -> bool {
    before.is_none() || after == before.map(|count| count.wrapping_add(steps))
}
