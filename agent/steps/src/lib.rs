//! The embedded step runner. Its formats arrive with the step-runner work; today it only reserves the crate boundary.
