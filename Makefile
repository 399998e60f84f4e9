# Two commands on a fresh machine: `make demo` and `make test`. CMake does the work; see CMakePresets.json.
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
BUILD = cmake --build $(1) -j $(JOBS)

.PHONY: all demo install test test-long setup setup-test clean

all: build/Makefile
	$(call BUILD,build) --target megalith

demo: setup
	$(MAKE) all
	tools/demo.sh build/megalith

# The command, its demo model, manual page and systemd unit, libmegalith, megalith.h and megalith.pc.
# PREFIX=~/.local needs no root.
install: setup build/Makefile
	$(call BUILD,build) --target megalith man libmegalith libmegalith_static
	cmake --install build --prefix $(PREFIX)

# Release, ASan+UBSan, TSan and fuzzing builds, then one ctest run over all of them.
test: setup-test
	tools/test.sh $(JOBS)

# The same with ten to a hundred times the fuzzing inputs, and the tests that take minutes.
test-long: setup-test
	tools/test.sh $(JOBS) long

setup:
	tools/setup.sh build

setup-test:
	tools/setup.sh test

build/Makefile: CMakeLists.txt CMakePresets.json
	cmake --preset release

clean:
	rm -rf build build-debug build-asan build-tsan build-fuzz build-all
