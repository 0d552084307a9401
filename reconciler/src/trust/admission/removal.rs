//! Removal of identities: by somebody on a reconciler's machine, or of a node that leaves for good.
//!
//! Reads `identities/`, `revoked/`, and the heartbeat of a node; deletes the record, after all other keys of a node that
//! leaves; revokes the key; removes user and member of etcd. A node's certificate may not delete its bindings and its
//! range, so any reconciler does it: like the records of identities without the leader's fence, while the node has no
//! heartbeat.

use jiff::Timestamp;
use schema::keys::{Key, prefix};
use schema::records::{IdentityRecord, RevokedIdentity};
use schema::store::{Guard, Op, Store, TXN_OPS_MAX, TxnOutcome};
use schema::trust::{Identity, Peer, Role};

use super::{
    ATTEMPTS, Admission, AdmissionError, Refusal, RemovedIdentity, identity_key, parsed, put, revoked_key,
};
use crate::trust::revocation::revoke;

impl Admission {
    /// Removes somebody on behalf of `by`, and revokes the key; a reconciler with its member of etcd.
    ///
    /// # Errors
    /// [`AdmissionError`]. After [`AdmissionError::Member`] another attempt removes the member.
    pub(crate) async fn remove(
        &self,
        name: &str,
        by: &str,
        now: Timestamp,
    ) -> Result<RemovedIdentity, AdmissionError> {
        let identity = parsed(name)?;
        if identity == *self.0.own.keeper.current().identity() {
            let why = "a reconciler does not remove itself; ask another one";
            return Err(AdmissionError::Invalid(why.to_owned()));
        }
        let (is_new, revoked) = match self.revoke(&identity, None, now).await {
            Ok(revoked) => (true, Some(revoked)),
            // Its member may be left from an attempt that failed.
            Err(AdmissionError::Unknown(_)) => (false, self.read(&revoked_key(&identity)).await?.1),
            Err(error) => return Err(error),
        };
        if is_new {
            let rest = match identity.role() {
                // Nothing but another authority takes that away.
                Role::Reconciler => "; its machine still has the key of the authority",
                _ => "",
            };
            self.report(&identity, "Removed", format!("removed by {by}; its key is revoked{rest}"));
        }
        let member = revoked.and_then(|revoked: RevokedIdentity| revoked.etcd_member);
        let etcd_member = match member {
            Some(member) => self.remove_member(&identity, &member).await?,
            None => None,
        };
        match is_new || etcd_member.is_some() {
            true => Ok(RemovedIdentity { etcd_member }),
            false => Err(AdmissionError::Unknown(identity)),
        }
    }

    /// Removes a node that leaves for good: all its keys, once it has no heartbeat, and then its identity.
    ///
    /// # Errors
    /// [`AdmissionError`]; [`AdmissionError::Alive`] while it has a heartbeat. Another attempt removes the rest.
    pub(crate) async fn leave(&self, peer: &Peer, now: Timestamp) -> Result<(), AdmissionError> {
        let identity = &peer.identity;
        let node = identity.node().ok_or_else(|| {
            AdmissionError::Invalid(format!("{identity} is no node, and only a node leaves by itself"))
        })?;
        self.known(identity, Some(&peer.key)).await?;
        delete_keys(self.0.store.as_ref(), node).await?;
        self.revoke(identity, Some(&peer.key), now).await?;
        self.report(
            identity,
            "Left",
            "left for good; its keys in etcd are deleted, its key is revoked".to_owned(),
        );
        Ok(())
    }

    /// Reads the record of an identity, which must have this key, if one is given.
    async fn known(
        &self,
        identity: &Identity,
        key: Option<&str>,
    ) -> Result<(Guard, IdentityRecord), AdmissionError> {
        self.check_standing(&self.0.snapshot.current())?;
        let (guard, known) = self.read::<IdentityRecord>(&identity_key(identity)).await?;
        let known = known.ok_or_else(|| AdmissionError::Unknown(identity.clone()))?;
        match key.is_some_and(|key| key != known.key) {
            true => Err(Refusal::Replaced(identity.clone()).into()),
            false => Ok((guard, known)),
        }
    }

    /// Deletes the record of an identity, which must have this key, if one is given; revokes the key, and removes its
    /// user of etcd. Returns its revoked keys.
    async fn revoke(
        &self,
        identity: &Identity,
        key: Option<&str>,
        now: Timestamp,
    ) -> Result<RevokedIdentity, AdmissionError> {
        for _ in 0..ATTEMPTS {
            let (guard, known) = self.known(identity, key).await?;
            if known.key == self.0.own.key()? {
                let why = format!("{identity} is a former name of this reconciler, which has the same key");
                return Err(AdmissionError::Invalid(why));
            }
            let (revoked_guard, revoked) = self.read::<RevokedIdentity>(&revoked_key(identity)).await?;
            let revoked = revoke(identity, revoked.as_ref(), &known, now);
            let ops = vec![Op::delete(identity_key(identity)), put(&revoked_key(identity), &revoked, None)?];
            if self.0.store.txn(vec![guard, revoked_guard], ops).await? == TxnOutcome::Conflict {
                continue;
            }
            self.revoke_here(revoked.clone()).await;
            if identity.role() != Role::User {
                self.follow_up(identity, self.0.accounts.remove(identity).await);
            }
            return Ok(revoked);
        }
        Err(AdmissionError::Busy)
    }

    /// Removes the member of etcd on the machine of a reconciler that was removed; returns its name.
    async fn remove_member(&self, identity: &Identity, name: &str) -> Result<Option<String>, AdmissionError> {
        if !self.0.owns_etcd {
            return Ok(None);
        }
        let removed = self.0.accounts.remove_member(name).await;
        let removed =
            removed.map_err(|source| AdmissionError::Member { identity: identity.clone(), source })?;
        if removed {
            self.report(identity, "MemberRemoved", format!("its member {name} of etcd is removed"));
        }
        Ok(removed.then(|| name.to_owned()))
    }
}

/// Deletes every key of a node. A second run finds nothing.
async fn delete_keys(store: &dyn Store, node: &str) -> Result<(), AdmissionError> {
    let heartbeat = Key::Heartbeat(node.to_owned()).to_string();
    if store.get(&heartbeat).await?.is_some() {
        return Err(AdmissionError::Alive(node.to_owned()));
    }
    let mut below = Vec::new();
    for prefix in [format!("{}{node}/", prefix::STATUS), prefix::bindings_of(node)] {
        below.extend(store.list(&prefix).await?.items.into_iter().map(|pair| pair.key));
    }
    for ops in steps(node, below) {
        // An agent of this name that starts meanwhile keeps the remaining keys.
        let guard = Guard::Absent(heartbeat.clone());
        if store.txn(vec![guard], ops).await? == TxnOutcome::Conflict {
            return Err(AdmissionError::Alive(node.to_owned()));
        }
    }
    Ok(())
}

/// Deletions by transaction: the node's record first, so that nothing more is placed on it; its range last, when
/// nothing has an address of it.
fn steps(node: &str, below: Vec<String>) -> Vec<Vec<Op>> {
    let own = [Key::Node, Key::Usage, Key::Rules, Key::Demand].map(|key| key(node.to_owned()).to_string());
    let range = Key::Subnet(node.to_owned()).to_string();
    let ops: Vec<Op> = own.into_iter().chain(below).chain([range]).map(Op::delete).collect();
    ops.chunks(TXN_OPS_MAX).map(<[Op]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use schema::store::memory::MemoryStore;

    use super::*;

    async fn filled(pods: usize) -> MemoryStore {
        let store = MemoryStore::new();
        for node in ["n1", "n10"] {
            let mut keys: Vec<String> =
                ["nodes/", "subnets/"].iter().map(|kind| format!("/minik8s/{kind}{node}")).collect();
            keys.extend(
                ["usage/N", "rules/N", "demand/N", "bindings/N/settled"]
                    .map(|key| format!("/minik8s/{}", key.replace('N', node))),
            );
            for pod in 0..pods {
                keys.push(format!("/minik8s/bindings/{node}/default/p{pod}"));
                keys.push(format!("/minik8s/status/{node}/pods/default/p{pod}"));
            }
            for key in keys {
                let _ = store.txn(vec![], vec![Op::put(key, "{}")]).await.unwrap();
            }
        }
        store
    }

    async fn left(store: &MemoryStore) -> Vec<String> {
        store.list("/minik8s/").await.unwrap().items.into_iter().map(|pair| pair.key).collect()
    }

    // Seen red with a prefix that ends before the slash.
    #[tokio::test]
    async fn all_of_the_node_goes_and_nothing_of_others() {
        let store = filled(110).await;
        delete_keys(&store, "n1").await.unwrap();
        let left = left(&store).await;
        assert!(left.len() == 226 && left.iter().all(|key| key.contains("n10")), "{left:?}");
        delete_keys(&store, "n1").await.unwrap();
    }

    #[test]
    fn the_record_goes_first_and_the_range_last() {
        let steps = steps("n", vec!["/minik8s/bindings/n/settled".to_owned(); TXN_OPS_MAX]);
        assert_eq!(steps.len(), 2);
        let all: Vec<Op> = steps.concat();
        assert_eq!(all.first(), Some(&Op::delete("/minik8s/nodes/n")));
        assert_eq!(all.last(), Some(&Op::delete("/minik8s/subnets/n")));
    }

    #[tokio::test]
    async fn a_node_whose_agent_is_alive_keeps_all() {
        let store = filled(1).await;
        let _ = store.txn(vec![], vec![Op::put("/minik8s/heartbeats/n1", "{}")]).await.unwrap();
        let before = left(&store).await;
        let refused = delete_keys(&store, "n1").await.unwrap_err();
        assert!(matches!(refused, AdmissionError::Alive(_)), "{refused}");
        assert_eq!(left(&store).await, before);
    }
}
