# The SPDX document of a release. In: lines "NAME vVERSION<tab>LICENCE" as `cargo tree` prints them.
# Arguments: $version, $created, $namespace, $image.
# What Cargo links into the programs, the C library that is in the image beside them, and nothing
# else: the image has no other package.
def id: gsub("[^A-Za-z0-9.-]"; "-");
[inputs | select(length > 0) | split("\t")
    | (.[0] | split(" ")) as $crate
    | {name: $crate[0], version: $crate[1][1:], licence: (.[1] // ""), own: (.[0] | contains("(/"))}]
| unique_by([.name, .version])
| map({
    SPDXID: "SPDXRef-\("crate-" + .name + "-" + .version | id)",
    name, versionInfo: .version,
    downloadLocation: (if .own then "NOASSERTION" else "https://crates.io/api/v1/crates/\(.name)/\(.version)/download" end),
    filesAnalyzed: false,
    licenseConcluded: "NOASSERTION",
    licenseDeclared: (if .licence == "" then "NOASSERTION" else (.licence | gsub("/"; " OR ")) end),
    externalRefs: [{referenceCategory: "PACKAGE-MANAGER", referenceType: "purl",
        referenceLocator: "pkg:cargo/\(.name)@\(.version)"}]
  }) as $crates
| ($libraries | split("\n") | map(select(length > 0) | split(" ") | {
    SPDXID: "SPDXRef-\("deb-" + .[0] + "-" + .[2] | id)",
    name: .[0], versionInfo: .[1],
    downloadLocation: "NOASSERTION", filesAnalyzed: false,
    licenseConcluded: "NOASSERTION", licenseDeclared: "NOASSERTION",
    externalRefs: [{referenceCategory: "PACKAGE-MANAGER", referenceType: "purl",
        referenceLocator: "pkg:deb/debian/\(.[0])@\(.[1] | @uri)?arch=\(.[2])"}]
  })) as $debs
| {
    spdxVersion: "SPDX-2.3", dataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT",
    name: "aliquot-\($version)", documentNamespace: $namespace,
    creationInfo: {created: $created, creators: ["Tool: release/build"]},
    packages: ([{
        SPDXID: "SPDXRef-image", name: "aliquot", versionInfo: $version, filesAnalyzed: false,
        downloadLocation: "NOASSERTION", licenseConcluded: "Apache-2.0", licenseDeclared: "Apache-2.0",
        checksums: [{algorithm: "SHA256", checksumValue: ($image | ltrimstr("sha256:"))}]
    }] + $crates + $debs),
    relationships: ([{spdxElementId: "SPDXRef-DOCUMENT", relationshipType: "DESCRIBES",
        relatedSpdxElement: "SPDXRef-image"}]
        + [($crates + $debs)[] | {spdxElementId: "SPDXRef-image", relationshipType: "CONTAINS",
            relatedSpdxElement: .SPDXID}])
  }
