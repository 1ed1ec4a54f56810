"""What tests of aotkit and of its plug-ins need: functions to compile, planted faults, and checks."""
