//! protox → tonic-prost-build: no protoc on anyone's machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=vendor");
    println!("cargo:rerun-if-changed=aliquot");
    for (file, include) in [
        (
            "vendor/deviceplugin/v1beta1/api.proto",
            "vendor/deviceplugin/v1beta1",
        ),
        ("vendor/podresources/v1/api.proto", "vendor/podresources/v1"),
        ("vendor/dra/v1/api.proto", "vendor/dra/v1"),
        (
            "vendor/dra-health/v1alpha1/api.proto",
            "vendor/dra-health/v1alpha1",
        ),
        (
            "vendor/pluginregistration/v1/api.proto",
            "vendor/pluginregistration/v1",
        ),
        ("aliquot/telemetry.proto", "aliquot"),
        ("aliquot/mps.proto", "aliquot"),
    ] {
        let descriptors = protox::compile([file], [include])?;
        let codec = if file == "aliquot/telemetry.proto" {
            "crate::codec::SmallBuffers"
        } else {
            "tonic_prost::ProstCodec"
        };
        tonic_prost_build::configure()
            .build_transport(true)
            .codec_path(codec)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
