//! Which replica acts: a `Lease`, by client-go's rules, with shorter times.
//!
//! The holder renews every second and stops acting when it could not for 8 s; others wait
//! 12 s by their own clock since they last saw it renewed. So the loser stops before the
//! winner starts, whatever the clocks say; and where the holder dies, the next one acts
//! within 15 s: a second until its last renewal is seen, 12 s, a read and a write.

use crate::clock::Wall;
use crate::leader::Grantor;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use proto::names::object;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Other replicas wait this long after the holder's last renewal.
const DURATION: Duration = Duration::from_secs(12);
/// The holder gives up after this time without a renewal.
const DEADLINE: Duration = Duration::from_secs(8);
/// At a stop, time for writes in flight before the lease is left to expire.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Between two tries.
const RETRY: Duration = Duration::from_secs(1);
/// For one request: half of [`DEADLINE`], as in client-go's leader election, so that one without an
/// answer does not cost the lease.
const ANSWER: Duration = Duration::from_secs(4);

/// The lease is lost, and with it the right to act.
#[derive(Debug, thiserror::Error)]
#[error("Lease {0} could not be renewed in time: another replica may act now")]
pub struct LeaseError(String);

/// One replica's view. Pure: times are given.
#[derive(Debug)]
struct Election {
    /// The lease's name.
    name: String,
    identity: String,
    /// The last observed lease, and when it was first observed.
    seen: Option<(LeaseSpec, Instant)>,
    /// When the last write that made us holder was sent.
    renewed: Option<Instant>,
    /// When the lease of another replica ends, unless that renews it.
    free_at: Option<Instant>,
}

/// The next step for the lease.
#[derive(Debug, PartialEq)]
enum Step {
    /// Another replica holds it.
    Wait,
    /// Write this.
    Hold(Box<LeaseSpec>),
}

impl Election {
    fn new(name: String, identity: String) -> Self {
        Self {
            name,
            identity,
            seen: None,
            renewed: None,
            free_at: None,
        }
    }

    fn next(&mut self, found: Option<&LeaseSpec>, now: Instant, wall: jiff::Timestamp) -> Step {
        let Some(found) = found else {
            return Step::Hold(Box::new(self.hold(None, wall)));
        };
        let since = match &self.seen {
            Some((spec, since)) if spec == found => *since,
            _ => {
                self.seen = Some((found.clone(), now));
                now
            }
        };
        let holder = found.holder_identity.as_deref().unwrap_or_default();
        let seconds = found.lease_duration_seconds.unwrap_or_default();
        let lasts = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        if !holder.is_empty() && holder != self.identity && now < since + lasts {
            self.free_at = Some(since + lasts);
            return Step::Wait;
        }
        Step::Hold(Box::new(self.hold(Some(found), wall)))
    }

    fn hold(&self, found: Option<&LeaseSpec>, wall: jiff::Timestamp) -> LeaseSpec {
        let now = Some(MicroTime(wall));
        let ours = found.filter(|spec| spec.holder_identity.as_ref() == Some(&self.identity));
        let transitions = found.map_or(0, |spec| {
            let before = spec.lease_transitions.unwrap_or_default();
            before.saturating_add(i32::from(ours.is_none()))
        });
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: ours
                .and_then(|spec| spec.acquire_time.clone())
                .or_else(|| now.clone()),
            renew_time: now,
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        }
    }

    /// Our write, sent at `sent`, was taken.
    fn held(&mut self, sent: Instant) {
        self.renewed = Some(sent);
    }

    /// Another replica holds it.
    fn lost(&self) -> bool {
        self.renewed.is_some()
    }

    /// Until when we may act.
    fn until(&self) -> Option<Instant> {
        self.renewed.map(|renewed| renewed + DEADLINE)
    }
}

/// The identity that would hold a lease.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// The lease's name.
    pub lease: String,
    /// Its own name in it.
    pub identity: String,
    /// Where other replicas and admission ask it; `None`: nowhere.
    pub address: Option<String>,
}

/// Publishes in `leading`, by a lease, whether this replica decides, and in `grantor` until when it
/// may write, until `stop`; the lease is released when the writes that are then in flight have
/// ended.
///
/// # Errors
/// It was held and is lost: `leading` is false by then, and the process ought to end.
pub(crate) async fn run(
    leases: Api<Lease>,
    candidate: Candidate,
    leading: watch::Sender<bool>,
    grantor: Grantor,
    wall: Wall,
    stop: CancellationToken,
) -> Result<(), LeaseError> {
    let address = candidate.address;
    let mut election = Election::new(candidate.lease, candidate.identity);
    let mut pause = tokio::time::interval(RETRY);
    pause.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let name = election.name.clone();
    let lost = || LeaseError(name.clone());
    loop {
        let deadline = election.until();
        let too_late = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let round = async {
            // Taken: where the lease cannot be read, the pause counts.
            match election.free_at.take() {
                Some(free) => tokio::select! {
                    biased;
                    _ = pause.tick() => {}
                    () = tokio::time::sleep_until(free) => {}
                },
                None => {
                    pause.tick().await;
                }
            }
            attempt(&leases, &mut election, address.as_deref(), &wall).await
        };
        let outcome = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = too_late => {
                grantor.revoke();
                leading.send_replace(false);
                return Err(lost());
            }
            outcome = round => outcome,
        };
        match outcome {
            Ok(true) => {
                if let Some(until) = election.until() {
                    grantor.extend(until);
                }
                if !leading.send_replace(true) {
                    tracing::info!(identity = election.identity, "this replica leads");
                }
            }
            Ok(false) if election.lost() => {
                grantor.revoke();
                leading.send_replace(false);
                return Err(lost());
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "the lease"),
        }
    }
    if leading.send_replace(false) {
        grantor.close();
        if tokio::time::timeout(LAST_WORDS, grantor.written())
            .await
            .is_err()
        {
            tracing::warn!("writes are in flight: the lease is left to expire");
            return Ok(());
        }
        grantor.revoke();
        release(&leases, &election).await;
    }
    Ok(())
}

/// Whether we hold it now.
async fn attempt(
    leases: &Api<Lease>,
    election: &mut Election,
    address: Option<&str>,
    wall: &Wall,
) -> kube::Result<bool> {
    let found = answered(leases.get_opt(&election.name)).await?;
    let spec = found.as_ref().and_then(|lease| lease.spec.as_ref());
    let sent = Instant::now();
    let Step::Hold(spec) = election.next(spec, sent, wall.now()) else {
        return Ok(false);
    };
    let parameters = PostParams::default();
    let is_new = found.is_none();
    let mut lease = found.unwrap_or_else(|| Lease {
        metadata: ObjectMeta {
            name: Some(election.name.clone()),
            ..ObjectMeta::default()
        },
        spec: None,
    });
    lease.spec = Some(*spec);
    let annotations = lease.metadata.annotations.get_or_insert_default();
    match address {
        Some(address) => annotations.insert(object::LEASE_ADDRESS.to_owned(), address.to_owned()),
        None => annotations.remove(object::LEASE_ADDRESS),
    };
    let written = if is_new {
        answered(leases.create(&parameters, &lease)).await
    } else {
        answered(leases.replace(&election.name, &parameters, &lease)).await
    };
    // A conflict: another writer was faster, which the next round sees.
    written?;
    election.held(sent);
    Ok(true)
}

/// What a request answers, or that it was not answered in time.
async fn answered<T>(request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    tokio::time::timeout(ANSWER, request)
        .await
        .unwrap_or_else(|late| Err(kube::Error::Service(late.into())))
}

/// Address of the holder of a lease. `None`: no replica holds it, or it has no address.
pub(crate) async fn holder(leases: &Api<Lease>, name: &str) -> kube::Result<Option<String>> {
    let lease = leases.get_opt(name).await?;
    let held = lease.filter(|lease| {
        let holder = lease
            .spec
            .as_ref()
            .and_then(|spec| spec.holder_identity.as_ref());
        holder.is_some_and(|holder| !holder.is_empty())
    });
    Ok(held.and_then(|lease| lease.metadata.annotations?.remove(object::LEASE_ADDRESS)))
}

/// So that the next one need not wait. Best effort: it waits otherwise.
async fn release(leases: &Api<Lease>, election: &Election) {
    let released = async {
        let mut lease = leases.get(&election.name).await?;
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() == Some(&election.identity) {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
            leases
                .replace(&election.name, &PostParams::default(), &lease)
                .await?;
        }
        Ok::<(), kube::Error>(())
    };
    match tokio::time::timeout(RETRY, released).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the lease is not released"),
        Err(_) => tracing::warn!("the lease is not released in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::leadership;
    use sim_cluster::api_server::{ApiServer, Config, Fault, Handle};
    use tokio::task::JoinHandle;

    fn wall() -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }

    fn held_by(step: Step) -> LeaseSpec {
        match step {
            Step::Hold(spec) => *spec,
            Step::Wait => panic!("waits"),
        }
    }

    #[test]
    fn a_lease_is_taken_when_it_is_free_ours_or_old_by_our_own_clock() {
        let start = Instant::now();
        let theirs =
            held_by(Election::new(object::LEASE.to_owned(), "b".into()).next(None, start, wall()));
        assert_eq!(theirs.lease_transitions, Some(0));
        let mut a = Election::new(object::LEASE.to_owned(), "a".into());
        assert_eq!(a.next(Some(&theirs), start, wall()), Step::Wait);
        let late = start + DURATION - Duration::from_millis(1);
        assert_eq!(a.next(Some(&theirs), late, wall()), Step::Wait);
        assert_eq!(a.free_at, Some(start + DURATION));
        let ours = held_by(a.next(Some(&theirs), start + DURATION, wall()));
        assert_eq!(ours.holder_identity.as_deref(), Some("a"));
        assert_eq!(ours.lease_transitions, Some(1));

        let again = held_by(a.next(Some(&ours), start + DURATION, wall()));
        assert_eq!(
            again.lease_transitions,
            Some(1),
            "renewing is no transition"
        );
        assert_eq!(again.acquire_time, ours.acquire_time);

        let mut free = theirs.clone();
        free.holder_identity = Some(String::new());
        held_by(Election::new(object::LEASE.to_owned(), "a".into()).next(
            Some(&free),
            start,
            wall(),
        ));
    }

    #[test]
    fn a_renewal_restarts_the_wait() {
        let start = Instant::now();
        let mut theirs =
            held_by(Election::new(object::LEASE.to_owned(), "b".into()).next(None, start, wall()));
        let mut a = Election::new(object::LEASE.to_owned(), "a".into());
        for round in 0..10 {
            let now = start + DURATION * round;
            theirs.renew_time = Some(MicroTime(
                wall() + jiff::SignedDuration::from_secs(i64::from(round)),
            ));
            assert_eq!(a.next(Some(&theirs), now, wall()), Step::Wait);
        }
    }

    #[test]
    fn the_loser_stops_before_the_winner_starts() {
        let sent = Instant::now();
        let mut holder = Election::new(object::LEASE.to_owned(), "a".into());
        let spec = held_by(holder.next(None, sent, wall()));
        holder.held(sent);
        // Seen by the other at the very moment it was sent: the worst case.
        let mut other = Election::new(object::LEASE.to_owned(), "b".into());
        assert_eq!(other.next(Some(&spec), sent, wall()), Step::Wait);
        let stops = holder.until().expect("it holds");
        assert_eq!(other.next(Some(&spec), stops + RETRY, wall()), Step::Wait);
    }

    async fn server() -> (Handle, kube::Client, tokio_util::sync::DropGuard) {
        let server = ApiServer::bind(Config::default()).await.expect("a port");
        let handle = server.handle();
        let client = kube::Client::try_from(handle.config()).expect("a client");
        let stop = CancellationToken::new();
        tokio::spawn(server.serve(stop.clone()));
        (handle, client, stop.drop_guard())
    }

    /// A replica; whether it acts; what stops it.
    fn start(
        client: &kube::Client,
        name: &str,
    ) -> (
        JoinHandle<Result<(), LeaseError>>,
        watch::Receiver<bool>,
        CancellationToken,
    ) {
        let (leading, acts) = watch::channel(false);
        let stop = CancellationToken::new();
        let task = run(
            Api::namespaced(client.clone(), "default"),
            Candidate {
                lease: object::LEASE.to_owned(),
                identity: name.to_owned(),
                address: Some(format!("https://{name}")),
            },
            leading,
            leadership().0,
            Wall::machine(),
            stop.clone(),
        );
        (tokio::spawn(task), acts, stop)
    }

    #[tokio::test]
    async fn one_acts_and_the_next_one_when_it_stops() {
        let (_server, client, _stop) = server().await;
        let (first, mut first_acts, first_stop) = start(&client, "a");
        first_acts.wait_for(|acts| *acts).await.expect("it runs");
        let (second, mut second_acts, second_stop) = start(&client, "b");
        tokio::time::sleep(RETRY * 2).await;
        assert!(!*second_acts.borrow(), "two act at once");
        first_stop.cancel();
        first.await.expect("no panic").expect("told to stop");
        // Released: no need to wait for the lease's end.
        tokio::time::timeout(RETRY * 3, second_acts.wait_for(|acts| *acts))
            .await
            .expect("in time")
            .expect("it runs");
        second_stop.cancel();
        second.await.expect("no panic").expect("told to stop");
    }

    /// A connection that swallows requests, as behind a load balancer that was replaced.
    #[tokio::test]
    async fn a_renewal_that_is_never_answered_costs_no_lease() {
        let (server, client, _stop) = server().await;
        let (task, mut acts, stop) = start(&client, "a");
        acts.wait_for(|acts| *acts).await.expect("it runs");
        server.plan("PUT", "/leases/", Fault::NoAnswer);
        tokio::time::sleep(DEADLINE + RETRY * 2).await;
        assert!(*acts.borrow(), "the lease is lost");
        stop.cancel();
        task.await.expect("no panic").expect("it is held");
    }

    #[tokio::test]
    async fn who_finds_another_holder_stops_acting() {
        let (_server, client, _stop) = server().await;
        let (task, mut acts, _runs) = start(&client, "a");
        acts.wait_for(|acts| *acts).await.expect("it runs");
        let leases: Api<Lease> = Api::namespaced(client, "default");
        let mut stolen = leases.get(object::LEASE).await.expect("a lease");
        stolen.spec.as_mut().expect("a spec").holder_identity = Some("thief".into());
        leases
            .replace(object::LEASE, &PostParams::default(), &stolen)
            .await
            .expect("replaced");
        let ended = tokio::time::timeout(RETRY * 3, task)
            .await
            .expect("in time");
        assert!(ended.expect("no panic").is_err());
        assert!(!*acts.borrow());
    }
}
