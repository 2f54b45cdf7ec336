//! Claims about slices of cards in MIG mode.

use super::*;
use crate::gpu::{Profile, Slice};
use crate::nvml::UnreadableCard;

const RESOURCE: &str = "nvidia.com/mig-1g.10gb";

fn profile() -> Profile {
    Profile::parse("1g.10gb").unwrap()
}

fn mig(n: u32) -> GpuUuid {
    GpuUuid::from(format!("MIG-{n}").as_str())
}

/// The usual cards, of which the first has two slices.
fn look(processes: &BTreeMap<u32, Vec<Process>>) -> Observation {
    look_with(processes, &["1g.10gb", "1g.10gb"])
}

/// The same with slices of these profiles.
fn look_with(processes: &BTreeMap<u32, Vec<Process>>, profiles: &[&str]) -> Observation {
    let mut seen = observation(&BTreeMap::new());
    let parent = seen.devices[0].identity.clone();
    seen.devices[0].reading.as_mut().unwrap().mig = true;
    let slice = |(n, profile): (u32, &&str)| Device {
        identity: Identity {
            uuid: mig(n),
            slice: Some(Slice {
                parent: parent.uuid.clone(),
                profile: Profile::parse(profile),
                gpu_instance: 7 + n,
                compute_instance: 0,
            }),
            ..parent.clone()
        },
        reading: Ok(Reading {
            total: Mib(100),
            processes: processes.get(&n).cloned().unwrap_or_default(),
            ..Reading::default()
        }),
    };
    seen.devices.extend((0..).zip(profiles).map(slice));
    seen
}

struct Node {
    world: World,
    core: Core,
}

impl Node {
    fn new() -> Self {
        let world = World::new();
        let core = world.started();
        let mut node = Self { world, core };
        node.look(BTreeMap::new());
        node
    }

    fn look(&mut self, processes: BTreeMap<u32, Vec<Process>>) {
        let seen = Arc::new(look(&processes));
        self.world.tell(&mut self.core, Event::Observed(seen));
    }

    /// A pod that some scheduler bound, without a grant, and that the kubelet has given a slice.
    fn pod(&mut self, n: u32, slice: u32) -> String {
        let mut pod = self.world.pod(n, true, 0, 0);
        pod.grant = None;
        let uid = pod.identity.uid.clone();
        self.world.pods.insert(uid.clone(), pod.clone());
        self.world.tell(&mut self.core, Event::Pod(Box::new(pod)));
        self.world.checkpoint.entries.push(Entry {
            pod_uid: uid.clone(),
            container: "main".into(),
            resource: RESOURCE.into(),
            ids: BTreeSet::from([mig(slice).to_string()]),
            alloc: Some(AllocId::new(u128::from(100 + n))),
        });
        uid
    }

    fn prepare(&mut self, slice: u32) -> Result<Share, String> {
        let ask = PrepareRequest {
            resource: Resource::Slice(profile()),
            ids: BTreeSet::from([mig(slice).to_string()]),
            source: Source::Checkpoint(self.world.checkpoint.clone()),
        };
        let (mut outcomes, _) = self.core.prepare(&ask, self.world.now);
        outcomes.remove(0).result.map_err(|why| why.reason)
    }

    /// The admin wants this many slices of that profile on the first card.
    fn wants(&mut self, profile: &str, count: u32) -> Vec<Effect> {
        let mut policy = Policy::default();
        policy.spec.gpus = vec![api::gpu_node::GpuPolicy {
            uuid: uuid(0).to_string(),
            mig_layout: Some(BTreeMap::from([(profile.to_owned(), count)])),
            ..Default::default()
        }];
        self.core.apply(Event::Policy(Some(policy)), self.world.now)
    }

    fn after(&mut self, seconds: u64) -> Vec<Effect> {
        self.world.now += Duration::from_secs(seconds);
        self.core.apply(Event::Tick, self.world.now)
    }

    fn says(&self) -> String {
        let messages = self.core.state().layouts.messages;
        messages.get(&uuid(0)).cloned().unwrap_or_default()
    }

    /// Healthy slices of the card in the report for schedulers.
    fn reported(&self) -> usize {
        let report = crate::telemetry::report::node_state(&self.core.state());
        report
            .slices
            .iter()
            .filter(|s| s.health == "Healthy")
            .count()
    }

    /// The card's layout is ordered: schedulers and the kubelet were told before.
    fn ordered(&mut self) -> LayoutOrder {
        // Each has two seconds to act on it.
        let told = |node: &Self| (node.reported(), node.offered().len());
        assert_eq!(told(self), (0, 2), "announced");
        assert_eq!(layouts(&self.after(1)), []);
        assert_eq!(told(self), (0, 2), "not longer");
        assert_eq!(layouts(&self.after(1)), []);
        assert_eq!(told(self), (0, 0), "withdrawn");
        assert_eq!(layouts(&self.after(1)), [], "not longer");
        let orders = layouts(&self.after(1));
        let [order] = orders.as_slice() else {
            panic!("{orders:?}");
        };
        order.clone()
    }

    /// Healthy slices in the list for the kubelet.
    fn offered(&self) -> Vec<String> {
        let offer = self.core.offer();
        let list = offer.list(Resource::Slice(profile())).iter();
        list.filter(|device| device.health == "Healthy")
            .map(|device| device.id.clone())
            .collect()
    }
}

#[test]
fn slices_stand_beside_the_shares_of_the_other_cards() {
    let node = Node::new();
    assert_eq!(node.offered(), ["MIG-0", "MIG-1"]);
    let offer = node.core.offer();
    let whole: Vec<&str> = offer.whole.iter().map(|d| d.id.as_str()).collect();
    assert_eq!(whole, ["GPU-1", "GPU-2"]);
    let tokens = offer.share.iter().map(|d| d.id.as_str());
    assert!(
        tokens
            .clone()
            .all(|id| !id.starts_with("MIG") && !id.starts_with("GPU-0"))
    );
    assert_eq!(tokens.count(), 8);
}

#[test]
fn a_slice_needs_no_grant_and_is_exactly_the_one_that_the_kubelet_gave() {
    let mut node = Node::new();
    let uid = node.pod(1, 1);
    let share = node.prepare(1).unwrap();
    assert_eq!(share.gpus, [mig(1)]);
    assert_eq!(share.pod.uid, uid);
    assert_eq!((share.memory, share.mode), (Mib(100), Mode::Exclusive));
    // Its process is its own, and anybody else's on it is a stranger's.
    let process = |pid: u32, pod: &str| Process {
        pid,
        memory: Some(Mib(10)),
        origin: crate::attribute::Origin {
            command: "python".into(),
            pod_uid: Some(pod.into()),
            ..Default::default()
        }
        .into(),
        ..Process::default()
    };
    for _ in 0..2 {
        node.look(BTreeMap::from([(
            1,
            vec![process(7, &uid), process(8, "other")],
        )]));
    }
    let slice = node.core.cards.inventory.card(&mig(1)).unwrap();
    let strangers: Vec<u32> = slice.strangers.iter().map(|s| s.pid).collect();
    assert_eq!(strangers, [8]);
    // Without allowance, a whole card is still not given without a grant.
    assert!(!node.core.terms.allow_ungranted_whole);
}

#[test]
fn a_container_has_slices_of_one_profile_or_a_share() {
    let mut node = Node::new();
    let uid = node.pod(1, 0);
    node.world.checkpoint.entries.push(Entry {
        pod_uid: uid,
        container: "main".into(),
        resource: Resource::Share.name().into_owned(),
        ids: BTreeSet::from(["GPU-1::0".to_owned()]),
        alloc: Some(AllocId::new(7)),
    });
    let refused = node.prepare(0).unwrap_err();
    assert!(refused.contains("holds another share"), "{refused}");
}

#[test]
fn a_fault_of_a_slice_is_its_own_and_one_of_its_card_is_all_slices() {
    let mut node = Node::new();
    let fault = |gpu| Event::Fault(Xid { gpu, number: 95 });
    node.world.tell(&mut node.core, fault(mig(0)));
    assert_eq!(node.offered(), ["MIG-1"]);
    let card = node.core.cards.inventory.card(&uuid(0)).unwrap();
    assert!(card.health.is_healthy());
    node.world.tell(&mut node.core, fault(uuid(0)));
    assert!(node.offered().is_empty());
    let slice = node.core.cards.inventory.card(&mig(1)).unwrap();
    assert_eq!(slice.health.reason(), "XID 95: the card needs a reset");
}

#[test]
fn a_slice_that_is_gone_is_no_row_and_its_holder_keeps_its_id() {
    let mut node = Node::new();
    node.pod(1, 1);
    node.prepare(1).unwrap();
    let mut seen = look(&BTreeMap::new());
    seen.devices.truncate(3);
    node.world
        .tell(&mut node.core, Event::Local(node.world.local()));
    node.world
        .tell(&mut node.core, Event::Observed(Arc::new(seen)));
    assert_eq!(node.core.cards.inventory.cards.len(), 3);
    assert_eq!(node.offered(), ["MIG-1"]);
}

#[test]
fn a_restarted_agent_knows_whose_slice_it_is() {
    let mut node = Node::new();
    let uid = node.pod(1, 1);
    let share = node.prepare(1).unwrap();
    let alloc = share.alloc_id.unwrap();
    let written = Share::from_record(alloc, &share.to_record());
    node.world
        .files
        .insert(alloc, written.map(|share| vec![share]));
    node.core = node.world.started();
    node.look(BTreeMap::new());
    let slice = mig(1);
    let rows: Vec<&Share> = node.core.ledger.on(&slice).collect();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].pod.uid, uid);
    assert_eq!(node.offered(), ["MIG-0", "MIG-1"]);
    assert!(node.core.state().ungranted.is_empty());
}

#[test]
fn a_pod_whose_slice_does_not_start_is_no_pod_without_a_grant() {
    let mut node = Node::new();
    node.pod(1, 1);
    for _ in 0..2 {
        node.world
            .tell(&mut node.core, Event::Local(node.world.local()));
        node.world.now += UNGRANTED_GRACE;
    }
    node.world.tell(&mut node.core, Event::Tick);
    assert!(node.core.state().ungranted.is_empty());
}

#[test]
fn slices_of_a_cordoned_card_are_not_allocated() {
    let mut node = Node::new();
    node.pod(1, 1);
    node.prepare(1).unwrap();
    let mut policy = Policy::default();
    policy.spec.gpus = vec![api::gpu_node::GpuPolicy {
        uuid: uuid(0).to_string(),
        cordoned: true,
        ..Default::default()
    }];
    node.world.tell(&mut node.core, Event::Policy(Some(policy)));
    node.world
        .tell(&mut node.core, Event::Local(node.world.local()));
    // What is held stays.
    assert_eq!(node.offered(), ["MIG-1"]);
}

fn layouts(effects: &[Effect]) -> Vec<LayoutOrder> {
    let order = |effect: &Effect| match effect {
        Effect::MakeLayout(order) => Some(order.clone()),
        _ => None,
    };
    effects.iter().filter_map(order).collect()
}

#[test]
fn a_card_gets_another_layout_after_schedulers_and_the_kubelet_were_told() {
    let mut node = Node::new();
    assert_eq!(layouts(&node.wants("2g.20gb", 1)), []);
    let order = node.ordered();
    let layout = BTreeMap::from([(Profile::parse("2g.20gb").unwrap(), 1)]);
    assert_eq!((&order.card, &order.layout), (&uuid(0), &layout));
    // Once, however long it takes.
    assert_eq!(layouts(&node.after(60)), []);
    let made = Event::LayoutMade(order, Ok(()));
    node.world.tell(&mut node.core, made);
    assert_eq!(node.reported(), 0, "the old slices are still shown");
    let seen = Arc::new(look_with(&BTreeMap::new(), &["2g.20gb"]));
    node.world.tell(&mut node.core, Event::Observed(seen));
    assert_eq!((node.reported(), node.says()), (1, String::new()));
    assert_eq!(layouts(&node.after(60)), []);
}

#[test]
fn a_layout_waits_for_the_pod_that_has_a_slice_or_is_getting_one() {
    let mut node = Node::new();
    node.wants("2g.20gb", 1);
    assert_eq!(node.reported(), 0);
    // One that the kubelet was admitting has the slice that the kubelet chose, and keeps it.
    let uid = node.pod(1, 1);
    node.world
        .tell(&mut node.core, Event::Local(node.world.local()));
    assert_eq!((node.reported(), node.offered().len()), (2, 2));
    assert_eq!(node.says(), "the kubelet has given slice MIG-1 to a pod");
    node.prepare(1).unwrap();
    assert_eq!(layouts(&node.after(60)), []);
    assert!(node.says().contains("has slice MIG-1"), "{}", node.says());
    // And one that the kubelet has not looked at yet may be about to get one.
    node.world.checkpoint = Checkpoint::default();
    node.world.tell(&mut node.core, Event::PodGone(uid.clone()));
    node.world.pods.remove(&uid);
    let mut next = node.world.pod(2, true, 0, 0);
    (next.grant, next.admitted) = (None, false);
    node.world
        .tell(&mut node.core, Event::Pod(Box::new(next.clone())));
    node.world
        .tell(&mut node.core, Event::Local(node.world.local()));
    assert_eq!(layouts(&node.after(60)), []);
    assert!(
        node.says().contains("has not admitted pod"),
        "{}",
        node.says()
    );
    next.finished = true;
    node.world.tell(&mut node.core, Event::Pod(Box::new(next)));
    node.ordered();
}

#[test]
fn a_process_without_a_pod_holds_a_layout_up() {
    let mut node = Node::new();
    let process = Process {
        pid: 7,
        ..Process::default()
    };
    node.look(BTreeMap::from([(0, vec![process])]));
    node.wants("2g.20gb", 1);
    assert_eq!(node.says(), "process 7 uses MIG-0");
    assert_eq!(node.reported(), 2);
}

#[test]
fn a_layout_that_fails_is_told_and_tried_again_later_and_later() {
    let mut node = Node::new();
    node.wants("2g.20gb", 1);
    for pause in [60, 120, 240] {
        let order = node.ordered();
        let why = "a slice 2g.20gb cannot be created: no room";
        let failed = Event::LayoutMade(order, Err(why.to_owned()));
        node.world.tell(&mut node.core, failed);
        assert_eq!(node.says(), why);
        assert_eq!((node.reported(), node.offered().len()), (2, 2), "as before");
        assert_eq!(layouts(&node.after(pause - 1)), []);
        assert_eq!(node.says(), why);
        node.after(1);
    }
    // Another wish is tried at once.
    node.wants("7g.80gb", 1);
    node.ordered();
}

#[test]
fn a_layout_that_is_made_and_not_shown_is_not_made_again_and_again() {
    let mut node = Node::new();
    node.wants("2g.20gb", 1);
    for pause in [60, 120] {
        let order = node.ordered();
        node.world
            .tell(&mut node.core, Event::LayoutMade(order, Ok(())));
        assert_eq!(layouts(&node.after(10)), []);
        assert_eq!(node.says(), "the driver shows other slices");
        assert_eq!(layouts(&node.after(pause - 1)), []);
        assert_eq!(node.says(), "the driver shows other slices");
        node.after(1);
    }
}

#[test]
fn what_is_no_layout_of_the_card_is_told_and_changes_nothing() {
    let mut node = Node::new();
    node.wants("banana", 1);
    assert_eq!(node.says(), "banana is no MIG profile: such as 1g.10gb");
    assert_eq!(node.reported(), 2);
    // What it has already needs nothing, and nothing of another profile.
    node.wants("1g.10gb", 2);
    assert_eq!((node.says(), node.reported()), (String::new(), 2));
    // No slice at all is a layout too.
    node.wants("1g.10gb", 0);
    assert_eq!(node.ordered().layout, BTreeMap::new());
}

#[test]
fn no_layout_changes_while_it_cannot_be_read_who_has_what() {
    let mut node = Node::new();
    let unreadable = (LocalSource::Checkpoint, "denied".to_owned());
    node.world.unreadable.insert(unreadable.0, unreadable.1);
    node.world
        .tell(&mut node.core, Event::Local(node.world.local()));
    node.wants("2g.20gb", 1);
    assert_eq!(layouts(&node.after(60)), []);
    assert!(node.says().ends_with("cannot be read"), "{}", node.says());
    node.world.unreadable.clear();
    node.world
        .tell(&mut node.core, Event::Local(node.world.local()));
    node.ordered();
}

#[test]
fn no_layout_changes_while_the_card_or_one_of_its_slices_does_not_answer() {
    for silent in [0, CARDS as usize] {
        let mut node = Node::new();
        let mut seen = look(&BTreeMap::new());
        seen.devices[silent].reading = Err(UnreadableCard {
            reason: "unknown error".into(),
            lost: false,
            hangs: false,
        });
        (node.world).tell(&mut node.core, Event::Observed(Arc::new(seen)));
        node.wants("2g.20gb", 1);
        assert_eq!(layouts(&node.after(60)), []);
        assert!(node.says().ends_with("does not answer"), "{}", node.says());
        node.look(BTreeMap::new());
        node.ordered();
    }
}

#[test]
fn no_layout_changes_while_the_card_has_slices_that_are_not_known() {
    let mut node = Node::new();
    let mut seen = look_with(&BTreeMap::new(), &["1g.10gb"]);
    let reading = seen.devices[0].reading.as_mut().unwrap();
    reading.slices_unknown = true;
    (node.world).tell(&mut node.core, Event::Observed(Arc::new(seen)));
    node.wants("1g.10gb", 2);
    assert_eq!(layouts(&node.after(60)), []);
    assert_eq!(node.says(), "not all of its slices can be read");
    node.look(BTreeMap::new());
    assert_eq!(node.says(), "");
}

#[test]
fn slices_that_are_being_destroyed_stay_withdrawn_whatever_the_policy_says_meanwhile() {
    let mut node = Node::new();
    node.wants("2g.20gb", 1);
    let order = node.ordered();
    let is_withdrawn = |node: &Node| (node.reported(), node.offered().len()) == (0, 0);
    // The admin wants another layout, then what was there, then none.
    node.wants("7g.80gb", 1);
    assert!(is_withdrawn(&node));
    node.wants("1g.10gb", 2);
    assert!(is_withdrawn(&node));
    node.world.tell(&mut node.core, Event::Policy(None));
    assert_eq!(layouts(&node.after(60)), []);
    assert!(is_withdrawn(&node));
    let made = Event::LayoutMade(order, Ok(()));
    node.world.tell(&mut node.core, made);
    assert!(is_withdrawn(&node), "the old slices are still shown");
    let seen = Arc::new(look_with(&BTreeMap::new(), &["2g.20gb"]));
    node.world.tell(&mut node.core, Event::Observed(seen));
    assert_eq!((node.reported(), node.says()), (1, String::new()));
}
