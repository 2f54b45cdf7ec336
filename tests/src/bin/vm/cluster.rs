//! The cluster of the claims in this folder.

use aliquot_tests::cluster::Cluster;
use aliquot_tests::virtual_machine::VirtualMachine;

/// A cluster whose one node is a virtual machine.
pub(crate) type MachineCluster = Cluster<VirtualMachine>;
