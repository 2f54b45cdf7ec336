//! protox → tonic-prost-build: no protoc on anyone's machine.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=vendor");
    println!("cargo:rerun-if-changed=aliquot");
    const DEFAULT: &str = "tonic_prost::ProstCodec";
    for (file, include, codec) in [
        (
            "vendor/deviceplugin/v1beta1/api.proto",
            "vendor/deviceplugin/v1beta1",
            DEFAULT,
        ),
        (
            "vendor/podresources/v1/api.proto",
            "vendor/podresources/v1",
            DEFAULT,
        ),
        ("vendor/dra/v1/api.proto", "vendor/dra/v1", DEFAULT),
        (
            "vendor/dra-health/v1alpha1/api.proto",
            "vendor/dra-health/v1alpha1",
            DEFAULT,
        ),
        (
            "vendor/pluginregistration/v1/api.proto",
            "vendor/pluginregistration/v1",
            DEFAULT,
        ),
        (
            "aliquot/telemetry.proto",
            "aliquot",
            "crate::codec::SmallBuffers",
        ),
        ("aliquot/mps.proto", "aliquot", DEFAULT),
    ] {
        let descriptors = protox::compile([file], [include])?;
        tonic_prost_build::configure()
            .build_transport(true)
            .codec_path(codec)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
