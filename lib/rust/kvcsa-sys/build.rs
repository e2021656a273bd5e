//! Finds the library: `KVCSA_LIB_DIR` (and `KVCSA_INCLUDE_DIR` for dependants that compile C), else
//! what the program `pkg-config` says of `kvcsa`.

use std::env;
use std::process::{Command, Stdio};

/// The first release that has all functions declared here.
const NEEDS: &str = "0.4";

/// What libkvcsa.a needs where nobody says so; with pkg-config it is asked.
const PRIVATE_LIBS: &[&str] = &[
    "jansson", "pcre2-8", "utf8proc", "xxhash", "m", "pthread", "dl",
];

fn main() {
    for name in [
        "KVCSA_LIB_DIR",
        "KVCSA_INCLUDE_DIR",
        "PKG_CONFIG",
        "PKG_CONFIG_PATH",
        "PKG_CONFIG_LIBDIR",
        "PKG_CONFIG_SYSROOT_DIR",
        "PKG_CONFIG_ALLOW_CROSS",
    ] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    let linked_in = env::var_os("CARGO_FEATURE_STATIC").is_some();
    let found = match env::var("KVCSA_LIB_DIR") {
        Ok(dir) if !dir.is_empty() => from_folder(&dir, linked_in),
        _ => from_pkg_config(linked_in),
    };
    if let Err(why) = found {
        eprintln!(
            "kvcsa-sys: {why}\n\
             Install kvcsa (`make install`) and let PKG_CONFIG_PATH hold the folder of kvcsa.pc, or \
             set KVCSA_LIB_DIR to the folder of the library."
        );
        std::process::exit(1);
    }
}

fn link(name: &str, linked_in: bool) {
    let kind = if linked_in { "static" } else { "dylib" };
    println!("cargo:rustc-link-lib={kind}={name}");
}

fn from_folder(dir: &str, linked_in: bool) -> Result<(), String> {
    println!("cargo:rustc-link-search=native={dir}");
    println!("cargo:libdir={dir}");
    if let Ok(include) = env::var("KVCSA_INCLUDE_DIR") {
        println!("cargo:include={include}");
    }
    link("kvcsa", linked_in);
    if linked_in {
        PRIVATE_LIBS.iter().for_each(|name| link(name, false));
    }
    Ok(())
}

fn pkg_config(args: &[&str]) -> Result<String, String> {
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_string());
    let out = Command::new(&program)
        .args(args)
        .arg("kvcsa")
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| format!("cannot start {program}: {e}"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr).trim().to_string();
        return Err(format!("{program} {} kvcsa: {said}", args.join(" ")));
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_string())
}

/// Whether one version is at least another, number by number.
fn is_at_least(version: &str, least: &str) -> bool {
    let numbers = |v: &str| -> Vec<u32> { v.split('.').map(|n| n.parse().unwrap_or(0)).collect() };

    numbers(version) >= numbers(least)
}

/// A variable of the .pc file, inside the sysroot if there is one.
fn folder(variable: &str) -> Result<String, String> {
    let dir = pkg_config(&[&format!("--variable={variable}")])?;
    let root = env::var("PKG_CONFIG_SYSROOT_DIR").unwrap_or_default();
    Ok(if dir.starts_with(&root) {
        dir
    } else {
        root + &dir
    })
}

fn from_pkg_config(linked_in: bool) -> Result<(), String> {
    // The plain pkg-config describes the machine that compiles, not the one that is compiled for.
    let told = [
        "PKG_CONFIG",
        "PKG_CONFIG_ALLOW_CROSS",
        "PKG_CONFIG_SYSROOT_DIR",
    ];
    if env::var_os("HOST") != env::var_os("TARGET") && told.iter().all(|n| env::var_os(n).is_none())
    {
        return Err("for another machine than this one, set PKG_CONFIG to its pkg-config".into());
    }
    let version = pkg_config(&["--modversion"])?;
    if !is_at_least(&version, NEEDS) {
        return Err(format!(
            "kvcsa {version} is installed, {NEEDS} or later is needed"
        ));
    }
    let flags = if linked_in {
        pkg_config(&["--static", "--cflags", "--libs"])?
    } else {
        pkg_config(&["--cflags", "--libs"])?
    };
    println!("cargo:include={}", folder("includedir")?);
    println!("cargo:libdir={}", folder("libdir")?);
    if linked_in {
        // pkg-config leaves out what the linker looks through anyway; rustc looks for itself.
        println!("cargo:rustc-link-search=native={}", folder("libdir")?);
    }
    for flag in flags.split_whitespace() {
        if let Some(dir) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={dir}");
        } else if flag == "-lkvcsa" {
            link("kvcsa", linked_in);
        } else if let Some(name) = flag.strip_prefix("-l") {
            link(name, false);
        } else if flag == "-pthread" {
            link("pthread", false);
        }
    }
    Ok(())
}
