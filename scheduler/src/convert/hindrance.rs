//! Reasons in a pod's own manifest and volumes for which it is placed nowhere: it waits with the
//! reason in its condition.

/// One sentence, or the part of one that names it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Hindrance {
    #[error(
        "a share without its token (the pod was created before the admission webhook was installed: delete it and create it again)"
    )]
    NoToken,
    #[error(
        "container {container} requests {amount} of {name} and was admitted with {admitted} (its annotations were changed after its creation: delete it and create it again)"
    )]
    OtherAmount {
        container: String,
        amount: u64,
        name: &'static str,
        admitted: String,
    },
    #[error("more than {0} rules about other pods")]
    PodRules(usize),
    #[error("a label selector with operator {0}")]
    SelectorOperator(String),
    #[error("ConfigMap: Missing required configmaps: [{0}]")]
    ConfigMaps(String),
    #[error("it uses {0} persistentvolumeclaims, more than the limit of {1}")]
    Claims(usize, usize),
    #[error("its volumes have too many rules about nodes")]
    VolumeRules,
    #[error("waiting for ephemeral volume controller to create the persistentvolumeclaim \"{0}\"")]
    EphemeralClaim(String),
    #[error("persistentvolumeclaim \"{0}\" not found")]
    ClaimNotFound(String),
    #[error("persistentvolumeclaim \"{0}\" is being deleted")]
    ClaimDeleted(String),
    #[error("persistentvolumeclaim \"{0}\" was not created for the pod")]
    ClaimOfAnother(String),
    #[error("persistentvolume \"{volume}\" of persistentvolumeclaim \"{claim}\" not found")]
    VolumeNotFound { volume: String, claim: String },
    #[error("persistentvolumeclaim \"{0}\" is not bound yet")]
    ClaimNotBound(String),
    #[error("node(s) did not have enough free storage for persistentvolumeclaim \"{0}\"")]
    Storage(String),
}
