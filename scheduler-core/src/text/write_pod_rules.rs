//! Rules between pods, and namespaces → text.

use super::write::{Text, requirements_text};
use crate::event::Namespace;
use crate::model::{Pod, PodSelector, PodTerm};

impl Text {
    pub(super) fn namespace(&mut self, namespace: &Namespace) {
        self.start("namespace", &namespace.name);
        self.labels("label", &namespace.labels);
        self.end();
    }

    fn selector(&mut self, pods: &PodSelector) {
        for name in &pods.namespaces {
            self.pair("ns", name);
        }
        let of = pods.namespace_labels.as_deref();
        self.some("ns-labels", of.map(requirements_text));
        let labels = pods.labels.as_deref();
        self.some("labels", labels.map(requirements_text));
    }

    fn pod_term(&mut self, kind: &str, term: &PodTerm) {
        self.start(kind, &term.topology_key);
        self.selector(&term.pods);
    }

    pub(super) fn pod_rules(&mut self, pod: &Pod) {
        for term in &pod.pods.affinity {
            self.pod_term("  near", term);
            self.end();
        }
        for term in &pod.pods.anti_affinity {
            self.pod_term("  away", term);
            self.end();
        }
        for preferred in &pod.pods.preferred {
            self.pod_term("  prefer", &preferred.term);
            self.pair("weight", preferred.weight);
            self.end();
        }
        for spread in &pod.pods.spread {
            self.pod_term("  spread", &spread.term);
            self.pair("max-skew", spread.max_skew);
            self.some("min-domains", spread.min_domains);
            self.flag("any-node", !spread.honors_affinity);
            self.flag("honor-taints", spread.honors_taints);
            self.flag("preferred", !spread.required);
            self.end();
        }
        for port in &pod.ports {
            self.start("  port", &port.protocol);
            self.pair("port", port.port);
            self.unless(
                "address",
                &*port.address,
                crate::model::HostPort::ANY_ADDRESS,
            );
            self.end();
        }
    }
}
