use super::*;
use std::fs;

fn run(root: &DriverRoot, program: &Path, shared: Shared<'_>) -> std::process::Output {
    let mut command = root.command(program, shared).unwrap();
    let own = [("PATH".into(), "/bin".into())].to_vec();
    command
        .args(["--exact", "tests::what_a_program_sees", "--nocapture"])
        .args(["--include-ignored", "--test-threads=1"])
        .env_clear()
        .envs(root.environment(own));
    if let Some(folder) = shared.folder {
        command.env("SHARED", folder);
    }
    command.output().unwrap()
}

/// Not a test: what the program of the foreign root does.
#[test]
#[ignore = "the other tests run it in a root of its own"]
fn what_a_program_sees() {
    let Some(folder) = std::env::var_os("SHARED") else {
        return;
    };
    let folder = Path::new(&folder);
    println!(
        "SHARED {}",
        fs::read_to_string(folder.join("file")).unwrap()
    );
    println!("SHM {}", Path::new("/dev/shm/file").exists());
    println!(
        "PROC {}",
        fs::read_link("/proc/self/exe").unwrap().display()
    );
    println!("ETC {}", Path::new("/etc").exists());
}

#[test]
fn a_program_runs_with_the_c_library_of_its_own_root() {
    if !nix::unistd::geteuid().is_root() {
        // Only root may change the root of a process.
        return;
    }
    let tmp = tempfile::tempdir().unwrap();
    let root = tmp.path().join("root");
    let program = root.join("usr/bin/nvidia-smi");
    foreign::lay_out(&root).unwrap();
    foreign::install(&std::env::current_exe().unwrap(), &program).unwrap();
    let [folder, shm] = ["shared", "shm"].map(|name| tmp.path().join(name));
    for dir in [&folder, &shm] {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join("file"), "here").unwrap();
    }
    let shared = Shared {
        folder: Some(&folder),
        shm: Some(&shm),
    };
    let output = run(&DriverRoot::at(&root), &program, shared);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    for line in [
        "SHARED here",
        "SHM true",
        "PROC /usr/bin/nvidia-smi",
        "ETC false",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    // Its mounts are its own: the root has empty folders more.
    for mount_point in [folder.strip_prefix("/").unwrap(), Path::new("proc")] {
        let left = fs::read_dir(root.join(mount_point)).unwrap();
        assert_eq!(left.count(), 0, "{}", mount_point.display());
    }

    // With this system's loader it does not even start: what a root of another
    // distribution did while its libraries alone were taken.
    let by_ours = DriverRoot {
        has_loader: false,
        ..DriverRoot::at(&root)
    };
    let output = run(&by_ours, &program, Shared::default());
    assert!(!output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("GLIBC_PRIVAT"), "{said}");
}

#[test]
fn a_root_without_a_loader_lends_its_folders_to_this_systems() {
    let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
    let own = vec![pair("PATH", "/bin"), pair("X", "1")];
    let tmp = tempfile::tempdir().unwrap();
    let root = DriverRoot::at(tmp.path());
    let here = tmp.path().display();
    let libraries = LIBRARIES.map(|folder| format!("{here}/{folder}")).join(":");
    let mut env = root.environment(own.clone());
    env.sort();
    assert_eq!(
        env,
        [
            pair("LD_LIBRARY_PATH", &libraries),
            pair("PATH", &format!("{here}/usr/bin:/bin")),
            pair("X", "1"),
        ]
    );
    // No empty part, which would be the current directory, comes in by what was there before.
    let odd = vec![pair("PATH", ":/bin::"), pair("LD_LIBRARY_PATH", "")];
    let mut odd = root.environment(odd);
    odd.sort();
    assert_eq!(odd, env[..2]);
    assert_eq!(DriverRoot::at(Path::new("/")).environment(own.clone()), own);
    // A loader that is a link of the root's own counts as one.
    fs::create_dir_all(tmp.path().join("lib64")).unwrap();
    let loader = tmp.path().join(LOADERS[0]);
    std::os::unix::fs::symlink("/nowhere/ld.so", loader).unwrap();
    let entered = DriverRoot::at(tmp.path()).environment(own);
    assert!(entered.contains(&pair("PATH", PATH)), "{entered:?}");
    assert!(entered.iter().all(|(name, _)| name != "LD_LIBRARY_PATH"));
}

#[test]
fn a_program_without_a_root_of_its_own_starts_in_the_root_folder() {
    let root = DriverRoot::at(Path::new("/"));
    let command = root.command(Path::new("/bin/pwd"), Shared::default());
    let output = command.unwrap().output().unwrap();
    assert_eq!(output.stdout, b"/\n");
}
