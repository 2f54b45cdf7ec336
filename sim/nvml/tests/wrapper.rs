//! The library as the agent meets it: loaded by path through `nvml-wrapper`,
//! from the driver root that it was installed into.
// Clippy takes helpers outside a test for no test.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{
    ComputeMode, EccCounter, MemoryError, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use sim_gpu::client::Driver as Connection;
use sim_gpu::client::process::{CudaProcess, Environment, Route, hold_outside_cuda};
use sim_gpu::driver::{Driver, Options, serve};
use sim_gpu::hardware::{Hardware, Preset};
use sim_gpu::paths::Root;
use sim_gpu::wire::Message;

/// A machine of its own; the driver ends first, then its folder.
struct Machine {
    driver: Option<Driver>,
    root: Root,
    _folder: tempfile::TempDir,
}

fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("libnvidia_ml.so")
}

impl Machine {
    fn new(hardware: Hardware) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::new(folder.path());
        let driver = start(&root, hardware);
        Self {
            driver: Some(driver),
            root,
            _folder: folder,
        }
    }

    fn nvml(&self) -> Nvml {
        load(&self.root.nvml()).unwrap()
    }

    fn ctl(&self, request: &Message) {
        Connection::connect(&self.root)
            .unwrap()
            .call(request)
            .unwrap();
    }

    fn set(&self, key: &str, value: u64) {
        let request = Message::new("ctl-set").with("index", 0);
        self.ctl(&request.with("key", key).with("value", value));
    }

    fn process(&self) -> CudaProcess {
        CudaProcess::init(&self.root, &Environment::new(), Route::Direct).unwrap()
    }
}

fn start(root: &Root, hardware: Hardware) -> Driver {
    serve(Options {
        root: root.path().to_owned(),
        hardware,
        nvml_library: Some(library()),
        plain_nodes: false,
        binary: None,
    })
    .unwrap()
}

fn load(path: &Path) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(path.as_os_str()).init()
}

const MIB: u64 = 1 << 20;

#[test]
fn a_machine_is_read_as_its_hardware_says() {
    let machine = Machine::new(Hardware::of(Preset::H100x80, 8));
    let cards = machine.driver.as_ref().unwrap().cards().to_vec();
    let nvml = machine.nvml();
    assert_eq!(nvml.sys_driver_version().unwrap(), "570.172.08");
    assert_eq!(nvml.sys_nvml_version().unwrap(), "12.570.172.08");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 12_080);
    assert_eq!(nvml.device_count().unwrap(), 8);
    let device = nvml.device_by_index(5).unwrap();
    assert_eq!(device.uuid().unwrap(), cards[5].uuid);
    assert_eq!(device.name().unwrap(), "NVIDIA H100 80GB HBM3");
    assert_eq!(
        (device.index().unwrap(), device.minor_number().unwrap()),
        (5, 5)
    );
    let pci = device.pci_info().unwrap();
    assert_eq!(pci.bus_id, cards[5].pci_bus_id);
    assert_eq!(
        (pci.domain, pci.pci_device_id, pci.pci_sub_system_id),
        (0, 0x2330_10DE, Some(0x16C1_10DE))
    );
    let memory = device.memory_info().unwrap();
    assert_eq!(memory.total, 81559 * MIB);
    assert_eq!(memory.reserved, 551 * MIB);
    assert_eq!((memory.used, memory.free), (0, (81559 - 551) * MIB));
    let capability = device.cuda_compute_capability().unwrap();
    assert_eq!((capability.major, capability.minor), (9, 0));
    assert_eq!(device.numa_node_id().unwrap(), 1);
    assert_eq!(nvml.device_by_index(0).unwrap().numa_node_id().unwrap(), 0);
    assert_eq!(device.mig_mode().unwrap().current, 0);
    assert_eq!(device.temperature(TemperatureSensor::Gpu).unwrap(), 36);
    assert!(device.power_usage().unwrap() > 0);
    assert_eq!(
        nvml.device_by_uuid(cards[2].uuid.as_str())
            .unwrap()
            .index()
            .unwrap(),
        2
    );
    assert_eq!(
        nvml.device_by_pci_bus_id(cards[3].pci_bus_id.as_str())
            .unwrap()
            .index()
            .unwrap(),
        3
    );
    assert!(matches!(
        nvml.device_by_index(8),
        Err(NvmlError::InvalidArg)
    ));
    assert!(matches!(
        nvml.device_by_uuid("GPU-nobody"),
        Err(NvmlError::NotFound)
    ));
}

#[test]
fn links_and_neighbours_are_told() {
    let machine = Machine::new(Hardware::of(Preset::A100x40, 4));
    let nvml = machine.nvml();
    let devices: Vec<_> = (0..4).map(|i| nvml.device_by_index(i).unwrap()).collect();
    let level = |a: usize, b: u32| {
        devices[a]
            .topology_common_ancestor(nvml.device_by_index(b).unwrap())
            .unwrap()
    };
    assert_eq!(level(0, 1), TopologyLevel::Multiple);
    assert_eq!(level(0, 2), TopologyLevel::System);
    assert!(devices[0].link_wrapper_for(11).is_active().unwrap());
    assert!(devices[0].link_wrapper_for(12).is_active().is_err());
    assert!(
        devices[0]
            .link_wrapper_for(0)
            .remote_pci_info()
            .unwrap()
            .bus_id
            .ends_with("05:00.0")
    );
    let lonely = Machine::new(Hardware::of(Preset::L4, 2));
    let nvml = lonely.nvml();
    let device = nvml.device_by_index(0).unwrap();
    assert!(matches!(
        device.link_wrapper_for(0).is_active(),
        Err(NvmlError::NotSupported)
    ));
    assert!(matches!(device.mig_mode(), Err(NvmlError::NotSupported)));
}

#[test]
fn processes_and_memory_follow_what_is_allocated() {
    let machine = Machine::new(Hardware::of(Preset::T4, 1));
    let nvml = machine.nvml();
    let device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.running_compute_processes().unwrap(), vec![]);
    assert!(matches!(
        device.process_utilization_stats(None),
        Err(NvmlError::NotFound)
    ));
    let mut process = machine.process();
    process.context(0).unwrap();
    process.allocate(0, 1000).unwrap();
    process.work(0, 70).unwrap();
    let found = device.running_compute_processes().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].pid, std::process::id());
    assert_eq!(found[0].used_gpu_memory, UsedGpuMemory::Used(1104 * MIB));
    assert_eq!(device.mps_running_compute_processes().unwrap(), vec![]);
    assert_eq!(device.running_graphics_processes().unwrap(), vec![]);
    assert_eq!(device.memory_info().unwrap().used, 1104 * MIB);
    assert_eq!(device.utilization_rates().unwrap().gpu, 70);
    assert_eq!(
        device.process_utilization_stats(None).unwrap()[0].sm_util,
        70
    );
    drop(process);
    let deadline = Instant::now() + Duration::from_secs(5);
    while device.memory_info().unwrap().used != 0 {
        assert!(
            Instant::now() < deadline,
            "memory of a closed connection comes back"
        );
    }
}

#[test]
fn compute_mode_is_set_by_an_administrator() {
    let machine = Machine::new(Hardware::of(Preset::T4, 1));
    let nvml = machine.nvml();
    let mut device = nvml.device_by_index(0).unwrap();
    assert_eq!(device.compute_mode().unwrap(), ComputeMode::Default);
    device
        .set_compute_mode(ComputeMode::ExclusiveProcess)
        .unwrap();
    assert_eq!(
        device.compute_mode().unwrap(),
        ComputeMode::ExclusiveProcess
    );
}

#[test]
fn an_xid_reaches_those_who_registered_before_it() {
    let machine = Machine::new(Hardware::of(Preset::T4, 2));
    machine.ctl(&Message::new("ctl-xid").with("index", 0).with("xid", 31));
    let nvml = machine.nvml();
    let devices: Vec<_> = (0..2).map(|i| nvml.device_by_index(i).unwrap()).collect();
    let wanted = EventTypes::CRITICAL_XID_ERROR;
    assert!(devices[0].supported_event_types().unwrap().contains(wanted));
    let set = nvml.create_event_set().unwrap();
    let set = devices[1].register_events(wanted, set).unwrap();
    let start = Instant::now();
    assert!(matches!(set.wait(50), Err(NvmlError::Timeout)));
    assert!(
        start.elapsed() >= Duration::from_millis(50),
        "a wait lasts its time"
    );
    std::thread::scope(|scope| {
        scope.spawn(|| {
            machine.ctl(&Message::new("ctl-xid").with("index", 0).with("xid", 43));
            machine.ctl(&Message::new("ctl-xid").with("index", 1).with("xid", 79));
        });
        let event = set.wait(10_000).unwrap();
        assert_eq!(
            event.device.uuid().unwrap_err().to_string(),
            NvmlError::GpuLost.to_string()
        );
        assert_eq!(format!("{:?}", event.event_data), "Some(Value(79))");
    });
    assert!(matches!(set.wait(0), Err(NvmlError::Timeout)));
}

#[test]
fn a_lost_card_says_so_until_it_is_restored() {
    let machine = Machine::new(Hardware::of(Preset::A100x80, 2));
    let nvml = machine.nvml();
    let device = nvml.device_by_index(1).unwrap();
    machine.ctl(&Message::new("ctl-lost").with("index", 1));
    assert!(matches!(device.memory_info(), Err(NvmlError::GpuLost)));
    assert!(matches!(nvml.device_by_index(1), Err(NvmlError::GpuLost)));
    assert_eq!(nvml.device_count().unwrap(), 2);
    assert!(nvml.device_by_index(0).unwrap().memory_info().is_ok());
    machine.ctl(&Message::new("ctl-restore").with("index", 1));
    assert!(device.memory_info().is_ok());
}

#[test]
fn errors_and_the_drivers_verdict_can_be_set() {
    let machine = Machine::new(Hardware::of(Preset::A100x80, 1));
    let nvml = machine.nvml();
    let device = nvml.device_by_index(0).unwrap();
    machine.set("ecc-uncorrected", 3);
    machine.set("remapped-pending", 1);
    machine.set("recovery-action", 1);
    assert_eq!(
        device
            .total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
            .unwrap(),
        3
    );
    let values = device
        .field_values_for(&[FieldId(230), FieldId(144), FieldId(99)])
        .unwrap();
    let text = |at: usize| format!("{:?}", values[at].as_ref().unwrap().value);
    assert!(text(0).contains("U32(1)"), "{}", text(0));
    assert!(text(1).contains("U32(1)"), "{}", text(1));
    assert!(values[2].is_err() || values[2].as_ref().unwrap().value.is_err());
}

#[test]
fn a_dead_driver_is_an_error_and_a_new_one_is_found_again() {
    let mut machine = Machine::new(Hardware::of(Preset::T4, 1));
    let nvml = machine.nvml();
    let device = nvml.device_by_index(0).unwrap();
    machine.driver = None;
    assert!(matches!(device.memory_info(), Err(NvmlError::Unknown)));
    assert!(matches!(nvml.device_count(), Err(NvmlError::Unknown)));
    machine.driver = Some(start(&machine.root, Hardware::of(Preset::T4, 1)));
    assert!(device.memory_info().is_ok());
    drop(nvml);
    machine.driver = None;
    assert!(matches!(
        load(&machine.root.nvml()),
        Err(NvmlError::DriverNotLoaded)
    ));
}

#[test]
fn only_cards_whose_node_is_there_are_seen() {
    let machine = Machine::new(Hardware::of(Preset::T4, 3));
    std::fs::remove_file(machine.root.dev().join("nvidia1")).unwrap();
    let nvml = machine.nvml();
    assert_eq!(nvml.device_count().unwrap(), 2);
    let device = nvml.device_by_index(1).unwrap();
    assert_eq!(
        (device.index().unwrap(), device.minor_number().unwrap()),
        (1, 2)
    );
    let hidden = machine.driver.as_ref().unwrap().cards()[1].uuid.clone();
    assert!(matches!(
        nvml.device_by_uuid(hidden.as_str()),
        Err(NvmlError::NotFound)
    ));
}

#[test]
fn what_draws_is_on_the_graphics_list_and_a_raw_client_on_none() {
    let machine = Machine::new(Hardware::of(Preset::T4, 1));
    let nvml = machine.nvml();
    let device = nvml.device_by_index(0).unwrap();
    let (_graphics, held) = hold_outside_cuda(&machine.root, "graphics", 500).unwrap();
    let (_raw, _) = hold_outside_cuda(&machine.root, "raw", 700).unwrap();
    let found = device.running_graphics_processes().unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].used_gpu_memory, UsedGpuMemory::Used(508 * MIB));
    assert_eq!(held.held, 508);
    assert_eq!(device.running_compute_processes().unwrap(), vec![]);
    assert_eq!(device.memory_info().unwrap().used, 1208 * MIB);
}

#[test]
fn a_list_of_processes_can_be_made_to_fail_or_to_be_late() {
    let machine = Machine::new(Hardware::of(Preset::T4, 1));
    let nvml = machine.nvml();
    let device = nvml.device_by_index(0).unwrap();
    machine.set("graphics-list", 3);
    assert!(matches!(
        device.running_graphics_processes(),
        Err(NvmlError::NotSupported)
    ));
    assert_eq!(device.running_compute_processes().unwrap(), vec![]);
    machine.set("process-lists", 4);
    assert!(matches!(
        device.mps_running_compute_processes(),
        Err(NvmlError::NoPermission)
    ));
    machine.set("process-lists", 0);
    machine.set("answer-ms", 50);
    let begin = Instant::now();
    assert_eq!(device.running_compute_processes().unwrap(), vec![]);
    assert!(begin.elapsed() >= Duration::from_millis(50));
    machine.set("answer-ms", 0);
    machine.set("process-memory-unavailable", 1);
    let mut process = machine.process();
    process.context(0).unwrap();
    let found = device.running_compute_processes().unwrap();
    assert_eq!(found[0].used_gpu_memory, UsedGpuMemory::Unavailable);
}

/// A card in MIG mode with three instances, beside one that is not.
fn sliced() -> Machine {
    let text = r#"{"cards":[{"preset":"A100-40","mig":true,
        "mig_instances":["3g.20gb","1g.5gb","1g.5gb"]},{"preset":"A100-40"}]}"#;
    Machine::new(Hardware::parse(text).unwrap())
}

/// The instances of the first card, in NVML's order.
fn instances(nvml: &Nvml) -> Vec<nvml_wrapper::Device<'_>> {
    let card = nvml.device_by_index(0).unwrap();
    let most = card.mig_device_count().unwrap();
    (0..most)
        .map_while(|index| card.mig_device_by_index(index).ok())
        .collect()
}

#[test]
fn instances_are_handles_of_their_card_with_memory_of_their_own() {
    let machine = sliced();
    let nvml = machine.nvml();
    assert_eq!(nvml.device_count().unwrap(), 2, "instances are no cards");
    let card = nvml.device_by_index(0).unwrap();
    assert_eq!(card.mig_mode().unwrap().current, 1);
    assert!(!card.mig_is_mig_device_handle().unwrap());
    let found = instances(&nvml);
    let names: Vec<String> = found.iter().map(|i| i.name().unwrap()).collect();
    let name = |profile| format!("NVIDIA A100-SXM4-40GB MIG {profile}");
    assert_eq!(names, ["3g.20gb", "1g.5gb", "1g.5gb"].map(name));
    let first = &found[0];
    assert!(first.mig_is_mig_device_handle().unwrap());
    let parent = first.mig_parent_device().unwrap();
    assert_eq!(parent.uuid().unwrap(), card.uuid().unwrap());
    let attributes = first.attributes().unwrap();
    let slices = |a: &nvml_wrapper::struct_wrappers::device::DeviceAttributes| {
        (a.gpu_instance_slice_count, a.compute_instance_slice_count)
    };
    assert_eq!(slices(&attributes), (3, 3));
    assert_eq!(attributes.memory_size_mb, 19968);
    assert_eq!(first.memory_info().unwrap().total, 19968 * MIB);
    let uuid = first.uuid().unwrap();
    assert!(uuid.starts_with("MIG-"));
    let again = nvml.device_by_uuid(uuid.as_str()).unwrap();
    assert_eq!(again.uuid().unwrap(), uuid);
    for refused in [
        first.minor_number().map(drop),
        first.compute_mode().map(drop),
        first.temperature(TemperatureSensor::Gpu).map(drop),
        first.mig_mode().map(drop),
        card.mig_device_by_index(3).map(drop),
        nvml.device_by_index(1)
            .unwrap()
            .mig_device_by_index(0)
            .map(drop),
    ] {
        let expected = matches!(refused, Err(NvmlError::NotSupported | NvmlError::NotFound));
        assert!(expected, "{refused:?}");
    }
    // Without its capability nodes an instance is not seen.
    std::fs::remove_file(machine.root.dev().join("nvidia-caps/nvidia-cap12")).unwrap();
    assert_eq!(instances(&nvml).len(), 2);
    let hidden = nvml.device_by_uuid(uuid.as_str());
    assert!(matches!(hidden, Err(NvmlError::NotFound)));
}

#[test]
fn a_process_is_confined_to_its_instance() {
    let machine = sliced();
    let nvml = machine.nvml();
    let found = instances(&nvml);
    let (mine, beside) = (found[1].uuid().unwrap(), &found[2]);
    let env = Environment::from([("CUDA_VISIBLE_DEVICES".into(), mine.clone())]);
    let mut process = CudaProcess::init(&machine.root, &env, Route::Direct).unwrap();
    assert_eq!(process.visible, [mine]);
    let view = process.context(0).unwrap();
    assert_eq!(view.total, 4864);
    let rest = view.free;
    assert!(process.allocate(0, rest + 1).is_err(), "past the instance");
    process.allocate(0, rest).unwrap();
    let listed = found[1].running_compute_processes().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].used_gpu_memory, UsedGpuMemory::Used(4864 * MIB));
    assert_eq!(listed[0].gpu_instance_id, Some(11));
    assert_eq!(beside.running_compute_processes().unwrap(), vec![]);
    assert_eq!(beside.memory_info().unwrap().free, 4864 * MIB);
    // The card's own handle says what all of them hold.
    let card = nvml.device_by_index(0).unwrap();
    assert_eq!(card.running_compute_processes().unwrap().len(), 1);
    assert_eq!(card.memory_info().unwrap().used, 4864 * MIB);
    // With all nodes at hand and no choice, a process has one instance and no card beside it.
    std::fs::remove_file(machine.root.dev().join("nvidia1")).unwrap();
    assert_eq!(machine.process().visible, [found[0].uuid().unwrap()]);
    // And without capability nodes none at all.
    std::fs::remove_dir_all(machine.root.dev().join("nvidia-caps")).unwrap();
    assert!(CudaProcess::init(&machine.root, &Environment::new(), Route::Direct).is_err());
}

#[test]
fn an_instances_fault_is_its_cards_event() {
    let machine = sliced();
    let nvml = machine.nvml();
    let card = nvml.device_by_index(0).unwrap();
    let set = nvml.create_event_set().unwrap();
    let set = card
        .register_events(EventTypes::CRITICAL_XID_ERROR, set)
        .unwrap();
    let uuid = instances(&nvml)[2].uuid().unwrap();
    machine.ctl(&Message::new("ctl-xid").with("gpu", uuid).with("xid", 95));
    let event = set.wait(5000).unwrap();
    assert_eq!(event.device.uuid().unwrap(), card.uuid().unwrap());
}
