# kvcsa: the only build. `make help` lists the targets and the variables.
#
# Comments stand on their own lines: a trailing one would put spaces into the value.
# CFLAGS, CPPFLAGS, LDFLAGS and LDLIBS are the user's; ours are added to them.
# B (objects, programs) and L (libraries) change together for a variant, as check-asan does.

PREFIX     ?= /usr/local
BINDIR     ?= $(PREFIX)/bin
LIBDIR     ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR     ?= $(PREFIX)/share/man
# The installed command finds the installed library by itself; empty where the system knows the folder.
INSTALL_RPATH ?= $$ORIGIN/$(call relative,$(LIBDIR),$(BINDIR))
DESTDIR    ?=
CFLAGS     ?= -O2 -g
LDDEFS     ?= -Wl,-z,defs
PKG_CONFIG ?= pkg-config
PYTHON     ?= python3
CLANG      ?= clang
CXX        ?= g++
B          ?= build
L          ?= lib
JOBS       ?= $(shell nproc 2>/dev/null || echo 2)

# Variants of the build.
CHECK_CFLAGS ?= -O2 -g -DKVI_DEBUG
ASAN_CFLAGS  ?= -O1 -g -DKVI_DEBUG -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
TSAN_CFLAGS  ?= -O2 -g -DKVI_DEBUG -fno-omit-frame-pointer -fsanitize=thread
FUZZ_CFLAGS  ?= -O1 -g -DKVI_DEBUG -fno-omit-frame-pointer -fsanitize=fuzzer-no-link,address,undefined \
                -fno-sanitize-recover=all
# gcc 12 for Arm breaks down on a test when it vectorises by itself.
NEON_CFLAGS  ?= $(CHECK_CFLAGS) -fno-tree-vectorize
FUZZ_SECONDS ?= 60
# Test programs that also run on a device: with the memory of the test device "apart", which faults and finds whoever does not wait,
# and on the emulated plug-in, whose sums have another order. What is left out asks for the CPU, or looks into the memory of sessions.
APART_TESTS  ?= test_session test_hosted test_snapshot_io test_snapshot_bytes test_api_session test_api_chunk* test_api_fork test_api_prefix test_api_replay \
                test_api_snapshot* test_api_sync test_api_threads* test_api_work test_api_limits test_api_edges test_api_behaviour*
APART_QUICK  ?= test_session test_api_session test_api_fork test_api_prefix test_api_sync
# Test programs that the thread sanitizer runs.
TSAN_TESTS   ?= test_base* test_threads* test_pool* test_host_tier_random test_api_session* test_api_threads* test_api_chunk* test_api_guest_more

# The version is written in the public header and nowhere else.
header_number = $(shell sed -n 's/^\#define $(1)  *\([0-9][0-9]*\).*/\1/p' include/kvcsa.h)
VERSION := $(call header_number,KVCSA_VERSION_MAJOR).$(call header_number,KVCSA_VERSION_MINOR).$(call header_number,KVCSA_VERSION_PATCH)
ABI     := $(call header_number,KVCSA_ABI)
# The machine that CC builds for; on Windows the shared library has one file, and an import library in front of it.
MACHINE := $(shell $(CC) -dumpmachine 2>/dev/null)
WINDOWS := $(findstring mingw,$(MACHINE))
SONAME  := $(if $(WINDOWS),libkvcsa-$(ABI).dll,libkvcsa.so.$(ABI))
REALLIB := $(if $(WINDOWS),$(SONAME),libkvcsa.so.$(VERSION))
DEVLIB  := $(if $(WINDOWS),libkvcsa.dll.a,libkvcsa.so)

WARNINGS  := -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-psabi
# No path of the building machine ends up in what is built.
COMMON    := -std=c11 -D_GNU_SOURCE $(WARNINGS) -ffile-prefix-map=$(CURDIR)=. -MMD -MP
KV_CFLAGS := $(COMMON) -fPIC -fvisibility=hidden -ffp-contract=off -Iinclude -Isrc -DKVCSA_BUILDING
# Programs that may use the public header only: no -Isrc.
API_CFLAGS := $(COMMON) -Iinclude
# Likewise in C++: the header must do without exceptions.
API_CXXFLAGS := -std=c++17 -fno-exceptions -fno-rtti -Wall -Wextra -Wpedantic -Wconversion -Wshadow \
                -ffile-prefix-map=$(CURDIR)=. -MMD -MP -Iinclude
LIBS      := -ljansson -lpcre2-8 -lutf8proc -lxxhash -lm -pthread -ldl
ifdef WINDOWS
# What POSIX has and mingw-w64 lacks stands in src/base/win32, in front of every file. Format checks and isnan() of its headers know
# neither %zu nor doubles. -muse-unaligned-vector-move: the stack of Windows is aligned to 16 bytes, gcc spills wider vectors as aligned.
COMMON    += -D_FILE_OFFSET_BITS=64 -D__USE_MINGW_ANSI_STDIO=1 -DPCRE2_STATIC -DUTF8PROC_STATIC -Isrc -Isrc/base/win32 \
             -include base/win32/posix_win32.h -Wno-format -Wno-float-conversion -Wno-attributes -Wa,-muse-unaligned-vector-move
KV_CFLAGS  := $(filter-out -fPIC -fvisibility=hidden,$(KV_CFLAGS)) $(COMMON)
API_CFLAGS += $(COMMON)
LIBS      := $(filter-out -ldl,$(LIBS))
endif

obj        = $(patsubst %.c,$(B)/obj/%.o,$(1))
# Kernels for the instruction sets of the machine that CC builds for.
ARCH      := $(patsubst aarch64%,arm,$(patsubst x86_64%,x86,$(MACHINE)))
LIB_SRC   := $(sort $(filter-out src/cli/%,$(wildcard src/*/*.c src/cpu/$(ARCH)/*.c $(if $(WINDOWS),src/base/win32/*.c))))
CLI_SRC   := $(sort $(wildcard src/cli/*.c))
# ggml is no part of this tree: its example is built where pkg-config finds it, or GGML_CFLAGS and GGML_LIBS say where it is.
ifndef GGML_LIBS
GGML_FOUND  := $(shell $(PKG_CONFIG) --exists 'ggml >= 0.9' 2>/dev/null && echo yes)
GGML_CFLAGS := $(if $(GGML_FOUND),$(shell $(PKG_CONFIG) --cflags ggml))
GGML_LIBS   := $(if $(GGML_FOUND),$(shell $(PKG_CONFIG) --libs ggml) -lggml-base)
endif
EXAMPLES  := $(sort $(filter-out $(if $(GGML_LIBS),,examples/ggml_%),$(wildcard examples/*.c)))
# In C++; a cross build that has no C++ compiler leaves them out.
CXX_EXAMPLES := $(sort $(wildcard examples/*.cc))
API_TESTS := $(sort $(wildcard test/test_api_*.c))
TESTS     := $(sort $(filter-out $(API_TESTS),$(wildcard test/test_*.c)))
# Programs beside the tests that scripts and people start; test/NAME.c and no test of their own.
TOOLS     := $(sort $(filter-out test/test_%.c,$(wildcard test/*.c)))
CUDA_TESTS := $(sort $(wildcard test/cuda/test_*.c test/cuda/test_*.cc))
FUZZ      := $(sort $(filter-out test/fuzz/fuzz_main.c,$(wildcard test/fuzz/fuzz_*.c)))
SUPPORT   := $(sort $(wildcard test/support/*.c))
APART_SRC := $(sort $(wildcard test/apart/*.c))
BENCH     := $(sort $(wildcard test/bench/*.c))
# libFuzzer (make fuzz) or our own driver that replays a corpus.
FUZZ_ENGINE ?= $(call obj,test/fuzz/fuzz_main.c)

LIB_OBJ      := $(call obj,$(LIB_SRC))
CLI_OBJ      := $(call obj,$(CLI_SRC))
SUPPORT_LIB  := $(if $(SUPPORT),$(B)/test/support.a)
TEST_BIN     := $(patsubst test/%.c,$(B)/test/%,$(TESTS) $(API_TESTS)) \
                $(patsubst %,$(B)/test/%,$(basename $(notdir $(CUDA_TESTS))))
TOOL_BIN     := $(patsubst test/%.c,$(B)/test/%,$(TOOLS))
FUZZ_BIN     := $(patsubst test/fuzz/%.c,$(B)/test/%,$(FUZZ))
CXX_EXAMPLE_BIN := $(patsubst %.cc,$(B)/%,$(CXX_EXAMPLES))
EXAMPLE_BIN  := $(patsubst %.c,$(B)/%,$(EXAMPLES)) $(CXX_EXAMPLE_BIN)
ALL_OBJ      := $(call obj,$(LIB_SRC) $(CLI_SRC) $(EXAMPLES) $(API_TESTS) $(TESTS) $(TOOLS) $(FUZZ) \
                $(SUPPORT) $(BENCH) $(APART_SRC) $(filter %.c,$(CUDA_TESTS)) test/cuda/bench_cuda.c \
                test/fuzz/fuzz_main.c)

# One short line for each file; V=1 shows the commands.
Q   := $(if $(filter 1,$(V)),,@)
say  = @$(if $(filter 1,$(V)),:,printf '  %-4s %s\n' '$(1)' '$(patsubst $(CURDIR)/%,%,$(2))')
relative = $(shell realpath -m --relative-to='$(2)' '$(1)')
# Use every core even if -j was not given; recursive, since the flags are known in recipes only.
submake  = $(MAKE) --no-print-directory $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(JOBS))
# $(call variant,NAME,CFLAGS,TARGETS)
variant  = $(submake) $(3) B=$(B)/$(1) L=$(B)/$(1)/lib CFLAGS="$(2)"

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
.SECONDARY:
.PHONY: all libs cuda examples tests tools fuzzers deps deps-all demo check check-all check-werror check-asan check-tsan \
        check-apart check-masks check-neon neon-build mingw check-mingw check-plugin check-cuda bench-cuda check-valgrind check-old \
        check-large fuzz fuzz-replay fuzz-run abi abi-update bench bench-peers bench-report measure doc wheel install uninstall clean dist deb help

all: libs $(if $(CLI_SRC),$(B)/kvcsa) examples

libs: $(L)/$(DEVLIB) $(L)/libkvcsa.a
examples: $(EXAMPLE_BIN)
tests: $(TEST_BIN) tools fuzzers
tools: $(TOOL_BIN) $(if $(CUDA_TESTS),$(B)/test/bench_cuda)
fuzzers: $(FUZZ_BIN)

# ---------------------------------------------------------------- objects

# The reference kernels are written with 16-lane vectors, which need -O3 to become straight SSE code. Sanitizers need minutes for
# the variants at that level, so they keep to their own.
KERNEL_OPT := $(if $(findstring -fsanitize,$(CFLAGS)),,-O3)
$(B)/obj/src/cpu/ref_%.o: KV_CFLAGS += $(KERNEL_OPT)
# So are the peers in plain C.
$(B)/obj/test/bench/bench_naive.o: KV_CFLAGS += -O3
# Variant files are the only ones that are built with more than the base of the architecture.
$(B)/obj/src/cpu/x86/%_avx2.o: KV_CFLAGS += $(KERNEL_OPT) -mavx2 -mfma -mf16c -mbmi2
$(B)/obj/src/cpu/x86/%_avx512.o: KV_CFLAGS += $(KERNEL_OPT) -mavx2 -mfma -mf16c -mbmi2 -mavx512f -mavx512bw -mavx512cd \
  -mavx512dq -mavx512vl -mavx512vbmi -mavx512vbmi2 -mavx512vnni -mprefer-vector-width=512
$(B)/obj/src/cpu/arm/%_neon.o: KV_CFLAGS += $(KERNEL_OPT)
$(B)/obj/src/cpu/arm/%_dotprod.o: KV_CFLAGS += $(KERNEL_OPT) -march=armv8.2-a+dotprod

# Its headers are not written for our warnings.
$(B)/obj/examples/ggml_%.o: API_CFLAGS += $(patsubst -I%,-isystem%,$(GGML_CFLAGS))
$(B)/obj/examples/%.o: examples/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(API_CFLAGS) -c -o $@ $<
$(B)/obj/examples/%.o: examples/%.cc Makefile
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) $(CPPFLAGS) $(CFLAGS) $(API_CXXFLAGS) -c -o $@ $<
$(B)/obj/src/cli/%.o: src/cli/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(API_CFLAGS) -Isrc -c -o $@ $<
$(B)/obj/test/test_api_%.o: test/test_api_%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(API_CFLAGS) -Itest -c -o $@ $<
$(B)/obj/test/%.o: test/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(KV_CFLAGS) -Itest -c -o $@ $<
$(B)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC,$<)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(KV_CFLAGS) -c -o $@ $<

# ---------------------------------------------------------------- libraries

# Our calls of our own functions stay inside, also where another copy of the library came first (-Bsymbolic-functions).
ifdef WINDOWS
# Exported is what lib/kvcsa.map names.
$(B)/kvcsa.def: lib/kvcsa.map
	@mkdir -p $(@D)
	@{ echo EXPORTS; sed -n 's/^ *\(kvcsa_[a-z0-9_]*\);.*/\1/p' $<; } > $@
$(L)/$(REALLIB): $(LIB_OBJ) $(B)/kvcsa.def Makefile
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -static -Wl,--out-implib,$(L)/libkvcsa.dll.a -o $@ $(LIB_OBJ) $(B)/kvcsa.def $(LDLIBS) $(LIBS)
$(L)/libkvcsa.dll.a: $(L)/$(REALLIB)
else
$(L)/$(REALLIB): $(LIB_OBJ) lib/kvcsa.map Makefile
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) $(LDDEFS) -Wl,--version-script=lib/kvcsa.map \
	  -Wl,-Bsymbolic-functions -o $@ $(LIB_OBJ) $(LDLIBS) $(LIBS)
$(L)/$(SONAME): $(L)/$(REALLIB)
	@ln -sf $(<F) $@
$(L)/libkvcsa.so: $(L)/$(SONAME)
	@ln -sf $(<F) $@
endif
$(L)/libkvcsa.a: $(LIB_OBJ) Makefile
	@mkdir -p $(@D)
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(AR) rcs $@ $(LIB_OBJ)

# ---------------------------------------------------------------- programs

# Programs of the tree find the shared library by a path relative to themselves.
link_shared_with = $(1) $(CFLAGS) $(LDFLAGS) -Wl,-rpath,'$$ORIGIN/$(call relative,$(L),$(@D))' -o $@ \
              $(filter %.o %.a,$^) $(LDLIBS) -L$(L) -lkvcsa
link_shared = $(call link_shared_with,$(CC))
link_static = $(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.o,$^) $(filter-out $(L)/%,$(filter %.a,$^)) \
              $(L)/libkvcsa.a $(LDLIBS)

ifdef WINDOWS
# A program is PROGRAM.exe, and PROGRAM a script that starts it with wine, or as it is on Windows.
link_shared = $(CC) $(CFLAGS) $(LDFLAGS) -static -o $@.exe $(filter %.o %.a,$^) $(WIN_OBJ) $(LDLIBS)
link_static = $(CC) $(CFLAGS) $(LDFLAGS) -static -o $@.exe $(filter %.o,$^) $(filter-out $(L)/%,$(filter %.a,$^)) \
              $(L)/libkvcsa.a $(LDLIBS)
starter     = @printf '%s\n' '\#!/bin/sh' 'WINEPATH="Z:$(abspath $(L))" exec $${WINE-wine} "$$0.exe" "$$@"' > $@ && chmod +x $@
# The command and tests of the API take their part of POSIX along; the command has its arguments in UTF-8.
POSIX_OBJ  := $(call obj,$(wildcard src/base/win32/*.c))
$(B)/test/test_api_%: WIN_OBJ = $(POSIX_OBJ)
$(B)/kvcsa: WIN_OBJ = $(POSIX_OBJ) $(B)/obj/lib/mingw/utf8.o
$(B)/kvcsa: | $(B)/obj/lib/mingw/utf8.o
$(B)/obj/lib/mingw/utf8.o: lib/mingw/utf8.rc lib/mingw/utf8.manifest
	@mkdir -p $(@D)
	$(Q)$(word 1,$(subst -gcc, ,$(CC)))-windres -I lib/mingw -o $@ $<
endif

# Tests run on another backend where the environment says so: test/support/test_backend.h.
TEST_WRAP := -Wl,--wrap=kvcsa_pool_create

# The command prints JSON and takes logarithms; the library itself stays a black box to it.
$(B)/kvcsa: $(CLI_OBJ) $(L)/$(DEVLIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(link_shared) -ljansson -lm
	$(starter)
# A path that the libraries of ggml look for each other in, too: they may lie anywhere.
$(B)/examples/ggml_%: EXAMPLE_LIBS = $(GGML_LIBS) -Wl,--disable-new-dtags \
  $(patsubst -L%,-Wl$(comma)-rpath$(comma)%,$(filter -L%,$(GGML_LIBS)))
$(B)/examples/%: $(B)/obj/examples/%.o $(L)/$(DEVLIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(link_shared) $(EXAMPLE_LIBS) -lm -pthread
	$(starter)
$(CXX_EXAMPLE_BIN): $(B)/examples/%: $(B)/obj/examples/%.o $(L)/$(DEVLIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(call link_shared_with,$(CXX)) -pthread
$(B)/test/support.a: $(call obj,$(SUPPORT))
	@mkdir -p $(@D)
	$(call say,AR,$@)
	@rm -f $@
	$(Q)$(AR) rcs $@ $^
$(B)/test/test_api_%: $(B)/obj/test/test_api_%.o $(SUPPORT_LIB) $(L)/$(DEVLIB)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(link_shared) $(TEST_WRAP) -lcmocka -ljansson -lm -pthread
	$(starter)
$(B)/test/test_%: $(B)/obj/test/test_%.o $(SUPPORT_LIB) $(L)/libkvcsa.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(link_static) $(TEST_WRAP) -lcmocka $(LIBS)
	$(starter)
$(B)/test/fuzz_%: $(B)/obj/test/fuzz/fuzz_%.o $(filter %.o,$(FUZZ_ENGINE)) $(SUPPORT_LIB) $(L)/libkvcsa.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(link_static) $(filter-out %.o,$(FUZZ_ENGINE)) $(LIBS)
	$(starter)
$(B)/test/bench: $(call obj,$(BENCH)) $(SUPPORT_LIB) $(L)/libkvcsa.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(link_static) $(LIBS)
	$(starter)
$(TOOL_BIN): $(B)/test/%: $(B)/obj/test/%.o $(SUPPORT_LIB) $(L)/libkvcsa.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(link_static) $(LIBS)
	$(starter)

# ---------------------------------------------------------------- CUDA plug-in

CUDA_SRC   := $(sort $(wildcard cuda/*.cu cuda/sm*/*.cu))
CUDA_INC   := -Iinclude -Isrc -Icuda $(addprefix -I,$(sort $(wildcard cuda/sm*)))
CUDA_ARCHS ?= 80 90a 100f 120
NVCC       ?= nvcc
comma      := ,
empty      :=
# Machine code for each architecture, and PTX of the lowest for those to come. Products and sums are rounded one by one. What
# each kernel needs of the chip is kept beside the object (NAME.ptxas): see check-plugin.
# KVI_CUDA_SM90A: what runs on Hopper has its own instructions (cuda/sm90).
NVCC_FLAGS  = -std=c++17 -O3 -fmad=false -cudart static -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra \
              $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a)$(comma)code=sm_$(a)) -gencode arch=compute_80,code=compute_80 \
              $(if $(filter 90,$(CUDA_ARCHS)),,$(if $(filter 90a,$(CUDA_ARCHS)),-DKVI_CUDA_SM90A))
CUDA_OBJ   := $(patsubst %.cu,$(B)/cuda/%.o,$(CUDA_SRC))
CUDA_HEAD  := $(wildcard cuda/*.h cuda/*.cuh cuda/sm*/*.h cuda/sm*/*.cuh src/*/*.h include/*.h)

cuda: $(L)/libkvcsa_cuda.so
$(B)/cuda/%.o: %.cu $(CUDA_HEAD) Makefile
	@mkdir -p $(@D)
	$(call say,NVCC,$<)
	$(Q)$(NVCC) $(NVCC_FLAGS) -Xptxas -v $(CUDA_INC) -c -o $@ $< 2>$(@:.o=.ptxas) || { cat $(@:.o=.ptxas) >&2; rm -f $@; exit 1; }
	$(Q)grep -vE '^ptxas info|^ +[0-9]+ bytes stack frame' $(@:.o=.ptxas) >&2 || true
$(L)/libkvcsa_cuda.so: $(CUDA_OBJ) lib/kvcsa_cuda.map
	@mkdir -p $(@D)
	$(call say,NVCC,$@)
	$(Q)$(NVCC) $(NVCC_FLAGS) -shared -Xlinker --version-script=lib/kvcsa_cuda.map,-soname,libkvcsa_cuda.so \
	  -Xlinker -z,defs -o $@ $(CUDA_OBJ) -ldl

# The same sources as C++, on the emulated device of test/cuda.
EMU_CFLAGS = -std=c++17 -D_GNU_SOURCE -DKVI_CUDA_EMULATED -Wall -Wextra -Wshadow -Wconversion -Wno-unused-function -fPIC \
             -fvisibility=hidden -ffp-contract=off -ffile-prefix-map=$(CURDIR)=. -MMD -MP $(CUDA_INC) -Itest/cuda -Itest
EMU_DEVICE := $(patsubst %.cc,$(B)/emu/%.o,$(wildcard test/cuda/emulate*.cc))
EMU_OBJ   := $(patsubst %.cu,$(B)/emu/%.o,$(CUDA_SRC)) $(EMU_DEVICE)
EMULATED  := $(B)/test/emulated/libkvcsa_cuda.so
$(B)/emu/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) $(CPPFLAGS) $(CFLAGS) $(EMU_CFLAGS) -x c++ -c -o $@ $<
$(B)/emu/%.o: %.cc Makefile
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) $(CPPFLAGS) $(CFLAGS) $(EMU_CFLAGS) -c -o $@ $<
$(EMULATED): $(EMU_OBJ)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CXX) $(CFLAGS) $(LDFLAGS) -shared $(LDDEFS) -o $@ $(EMU_OBJ) -ldl -pthread
$(B)/test/test_cuda_%: $(B)/obj/test/cuda/test_cuda_%.o $(SUPPORT_LIB) $(L)/libkvcsa.a $(EMULATED)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(link_static) -lcmocka $(LIBS)
$(B)/test/bench_cuda: $(B)/obj/test/cuda/bench_cuda.o $(L)/libkvcsa.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(link_static) $(LIBS)
# Tests of the emulation, and of kernels with planted faults: the kernels are inside.
$(B)/test/test_emulate: $(B)/emu/test/cuda/test_emulate.o $(EMU_DEVICE)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CXX) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka -pthread
# A kernel with a fault shifts by garbage, which is what the test is about.
$(B)/emu/test/cuda/test_planted_%.o: EMU_CFLAGS += $(if $(findstring undefined,$(CFLAGS)),-fno-sanitize=undefined)
$(B)/test/test_planted_%: $(B)/emu/test/cuda/test_planted_%.o $(EMU_DEVICE)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CXX) $(CFLAGS) $(LDFLAGS) -o $@ $^ -lcmocka -pthread

# ---------------------------------------------------------------- test device

# The CPU behind memory that the host cannot touch; it has a library of its own inside, of which nothing can be seen.
APART     := $(B)/test/apart/libkvcsa_cuda.so
$(APART): $(call obj,$(APART_SRC)) $(L)/libkvcsa.a lib/kvcsa_cuda.map
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-Bsymbolic -Wl,--version-script=lib/kvcsa_cuda.map $(LDDEFS) \
	  -o $@ $(filter %.o,$^) $(L)/libkvcsa.a $(LDLIBS) $(LIBS)
# Programs that load it whatever the environment says; a cross build has no emulated device.
$(addprefix $(B)/test/,test_memory test_tape test_cpu_forms test_cpu_slices test_net test_pool_apart test_host_tier \
    test_host_tier_random test_device_full test_step_graph test_api_backend): | $(APART)
$(B)/test/test_api_backend: | $(if $(CUDA_TESTS),$(EMULATED))

# ---------------------------------------------------------------- checks

deps:
	@test/install_deps.sh check
deps-all:
	@test/install_deps.sh all

check: deps
	+@$(submake) all tools
	+@$(call variant,check,$(CHECK_CFLAGS),tests)
	@test/run_tests.sh --build $(B)/check --scripts $(B) $(L) --also apart "$(APART_QUICK)"

# Sessions on devices that need no chip: all of APART_TESTS, and the emulated CUDA plug-in.
check-apart: deps
	+@$(call variant,check,$(CHECK_CFLAGS),tests)
	@test/run_tests.sh --build $(B)/check --only-also --also apart "$(APART_TESTS)"

check-asan: deps
	+@$(call variant,asan,$(ASAN_CFLAGS),tests) LDDEFS=
	@test/run_tests.sh --build $(B)/asan --no-scripts

check-tsan: deps
	+@$(call variant,tsan,$(TSAN_CFLAGS),tests) LDDEFS=
	@test/run_tests.sh --build $(B)/tsan --no-scripts $(TSAN_TESTS)

# memcheck on the tests of the public interface that take it in seconds; the others have their own ways to memory (check-asan).
VALGRIND_TESTS ?= test_api_table test_api_model test_api_limits test_api_estimate test_api_cost_* \
                  test_api_prefix test_api_cpu test_api_compare test_api_snapshot test_api_null test_api_chunk* test_api_plan* \
                  test_api_guest_load
check-valgrind: deps-all
	+@$(call variant,check,$(CHECK_CFLAGS),tests)
	@test/run_valgrind.sh $(B)/check $(VALGRIND_TESTS)

# The libraries of older releases, built from the history, with their programs and with today's.
check-old: deps
	+@$(submake) libs
	@test/check_old_new.sh $(B) $(L) history

check-werror: deps-all
	+@$(call variant,gcc,-O2 -g -Werror,all tests) CC=gcc
	+@$(call variant,clang,-O2 -g -Werror,all tests) CC=$(CLANG) CXX=$(CLANG)++

check-all: deps-all
	@test/check_all.sh "$(MAKE)" $(B)

# Libraries, command and examples for Windows x86-64, and what they link; test/check_mingw.sh runs them under wine.
MINGW_CC ?= x86_64-w64-mingw32-gcc-posix
# Tests that need no more of POSIX than there is.
MINGW_TESTS ?= test_base test_hosted test_api_chunk test_api_chunk_edges test_api_chunk_random test_api_plan test_api_plan_rules \
  test_kern_paged_write test_block test_config test_container test_cpu_cache test_cpu_select test_engram_hash test_evict test_format_layout \
  test_format_types test_fp_mode test_kern_attend test_kern_cache test_kern_dense test_kern_index test_kern_linear test_kern_moe \
  test_kern_paged test_kern_select test_model test_plan_cost test_plan_family test_plan_override test_plan_rules test_pool \
  test_prefix test_sampler test_session test_snapshot_bytes test_synth test_text test_text_file test_text_stream test_window \
  test_work test_api_compare_keep test_api_compare_run test_api_cost_reuse test_api_cost_serving test_api_cpu test_api_edges \
  test_api_fork test_api_hostile test_api_limits test_api_model test_api_null test_api_prefix test_api_replay test_api_session \
  test_api_snapshot_state test_api_sync test_api_threads
mingw:
	@lib/mingw/make_deps.sh $(B) $(MINGW_CC)
	+@$(call variant,mingw,-O2 -g,libs $(B)/mingw/kvcsa $(addprefix $(B)/mingw/examples/,branch generate share_prefix) $(addprefix $(B)/mingw/test/,$(MINGW_TESTS))) CC=$(MINGW_CC) \
	  AR=$(MINGW_CC:%-gcc-posix=%-ar) CPPFLAGS="-I$(B)/windeps/include" LDFLAGS="-L$(B)/windeps/lib"
check-mingw: mingw
	@test/check_mingw.sh $(B) $(L) $(B)/mingw

# Kernels of every instruction set: the sets of this machine one by one, and Arm's under an emulator.
check-masks: deps
	+@$(call variant,check,$(CHECK_CFLAGS),all tests)
	@test/check_masks.sh $(B)/check

NEON_CC ?= aarch64-linux-gnu-gcc
neon-build:
	+@$(call variant,neon,$(NEON_CFLAGS),all tests) CUDA_TESTS= CXX_EXAMPLES= GGML_LIBS= CC=$(NEON_CC) AR=$(NEON_CC:gcc=ar)
check-neon: deps-all neon-build
	@test/check_neon.sh $(B)/neon $(NEON_TESTS)

# The plug-in as nvcc makes it: what it exports and links, what its kernels need of the chip, and that it says why it does not run.
check-plugin: deps-all
	+@$(call variant,check,$(CHECK_CFLAGS),all tests)
	@test/check_plugin.sh "$(MAKE)" $(B) $(L)

# The tests of the emulated device on a real one, which must be there.
check-cuda: cuda
	+@$(call variant,check,$(CHECK_CFLAGS),tests)
	@for t in $(filter-out test_emulate test_planted%,$(basename $(notdir $(CUDA_TESTS)))); do \
	  echo "== $$t"; $(B)/check/test/$$t $(L)/libkvcsa_cuda.so || exit 1; done
	@mkdir -p $(B)/check/test/cuda && cp $(L)/libkvcsa_cuda.so $(B)/check/test/cuda/
	@test/run_tests.sh --build $(B)/check --only-also --also cuda "$(APART_TESTS)"

bench-cuda: cuda $(B)/test/bench_cuda
	$(B)/test/bench_cuda $(L)/libkvcsa_cuda.so

check-large: deps
	+@$(submake) all tools
	@test/check_large.sh --build $(B) --python "$(PYTHON)" "$(ORACLE)"

# Random inputs under libFuzzer; what it finds new stays in build/fuzz/corpus, a crash in build/fuzz/crashes.
fuzz: deps-all
	+@$(call variant,fuzz,$(FUZZ_CFLAGS),fuzzers) CC=$(CLANG) LDDEFS= FUZZ_ENGINE=-fsanitize=fuzzer
	@test/fuzz/run_fuzz.sh $(B)/fuzz $(FUZZ_SECONDS)

# The stored inputs alone, with any compiler.
fuzz-replay: fuzzers
	@test/run_tests.sh --build $(B) --no-scripts fuzz_*

abi: libs
	@test/check_abi.sh $(L)
# The dump belongs to a release: run this when one is made, see docs/release.md.
abi-update: libs
	@test/check_abi.sh --update $(L)

# ---------------------------------------------------------------- what people run

demo: deps
	+@$(submake) all
	@test/run_demo.sh $(B)

bench: deps
	+@$(submake) $(B)/test/bench $(B)/peers/peer_std.so
	$(B)/test/bench --out $(B)/bench.json $(BENCH_ARGS)
# The tables and the picture of docs/benchmarks.md, from the results of `make bench`.
bench-report:
	$(PYTHON) test/bench/bench_report.py $(B)/bench.json
# What it is compared with, see test/bench/build_peers.sh: fetches packages, nothing of it is part of the tree.
bench-peers: $(B)/peers/peer_std.so
	@PYTHON="$(PYTHON)" CC="$(CC)" CXX="$(CXX)" JOBS="$(JOBS)" test/bench/build_peers.sh $(B)/peers $(PEERS)
$(B)/peers/peer_std.so: test/bench/peers/peer_std.cpp test/bench/peers/peer_api.h Makefile
	@mkdir -p $(@D)
	$(call say,CXX,$<)
	$(Q)$(CXX) -std=c++17 -O3 -fPIC -shared -fvisibility=hidden -o $@ $<

# What each saving does to the answers of the shipped model: writes the tables and pictures of docs/measurements.md.
measure: deps
	+@$(submake) all
	@test/measure.sh $(B)

# The reference of the header as HTML, in $(B)/doc/html; every warning is an error. Needs doxygen and python3.
doc:
	@rm -rf $(B)/doc && mkdir -p $(B)/doc
	@$(PYTHON) docs/doxygen/filter.py --check include/kvcsa.h
	@DOC_VERSION=$(VERSION) DOC_OUT=$(B)/doc doxygen docs/doxygen/Doxyfile
	@echo "$(B)/doc/html/index.html"

# What install writes, and so what uninstall removes: paths without DESTDIR.
PUBLIC    := $(sort $(wildcard include/*.h include/*.hpp))
MAN1      := $(sort $(wildcard docs/*.1 docs/man/*.1))
CMAKEDIR   = $(LIBDIR)/cmake/kvcsa
INSTALLED  = $(BINDIR)/kvcsa $(addprefix $(INCLUDEDIR)/,$(notdir $(PUBLIC))) $(addprefix $(MANDIR)/man1/,$(notdir $(MAN1))) \
             $(addprefix $(LIBDIR)/,$(REALLIB) $(SONAME) libkvcsa.so libkvcsa.a pkgconfig/kvcsa.pc) \
             $(addprefix $(CMAKEDIR)/,kvcsa-config.cmake kvcsa-config-version.cmake)
# $(call fill,TEMPLATE,FILE): folders below the prefix are written as such, so that an installed tree may be moved.
under_prefix = $(patsubst $(PREFIX)/%,$${prefix}/%,$(1))
fill = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(call under_prefix,$(LIBDIR))|' \
  -e 's|@INCLUDEDIR@|$(call under_prefix,$(INCLUDEDIR))|' -e 's|@VERSION@|$(VERSION)|' -e 's|@ABI@|$(ABI)|' \
  -e 's|@MAJOR@|$(firstword $(subst ., ,$(VERSION)))|' -e 's|@INCLUDE_FROM_CMAKE@|$(call relative,$(INCLUDEDIR),$(CMAKEDIR))|' \
  $(1) > "$(DESTDIR)$(2)" && chmod 644 "$(DESTDIR)$(2)"

install: libs $(B)/kvcsa
	install -d "$(DESTDIR)$(BINDIR)" "$(DESTDIR)$(INCLUDEDIR)" "$(DESTDIR)$(LIBDIR)/pkgconfig" "$(DESTDIR)$(CMAKEDIR)"
	install -m 644 $(PUBLIC) "$(DESTDIR)$(INCLUDEDIR)"
	install -m 755 $(L)/$(REALLIB) "$(DESTDIR)$(LIBDIR)/$(REALLIB)"
	ln -sf $(REALLIB) "$(DESTDIR)$(LIBDIR)/$(SONAME)"
	ln -sf $(SONAME) "$(DESTDIR)$(LIBDIR)/libkvcsa.so"
	install -m 644 $(L)/libkvcsa.a "$(DESTDIR)$(LIBDIR)/libkvcsa.a"
	$(call fill,kvcsa.pc.in,$(LIBDIR)/pkgconfig/kvcsa.pc)
	$(call fill,lib/cmake/kvcsa-config.cmake.in,$(CMAKEDIR)/kvcsa-config.cmake)
	$(call fill,lib/cmake/kvcsa-config-version.cmake.in,$(CMAKEDIR)/kvcsa-config-version.cmake)
	$(if $(MAN1),install -d "$(DESTDIR)$(MANDIR)/man1" && install -m 644 $(MAN1) "$(DESTDIR)$(MANDIR)/man1")
	$(CC) $(CFLAGS) $(LDFLAGS) $(if $(INSTALL_RPATH),-Wl$(comma)-rpath$(comma)'$(INSTALL_RPATH)') \
	  -o "$(DESTDIR)$(BINDIR)/kvcsa" $(CLI_OBJ) $(LDLIBS) -L$(L) -lkvcsa -ljansson -lm

# The Python package with the library inside; needs nothing but python3.
wheel: $(L)/libkvcsa.so
	$(PYTHON) -B lib/python/build_wheel.py $(B)/wheel --library $(L)/libkvcsa.so

uninstall:
	@for f in $(INSTALLED); do rm -f "$(DESTDIR)$$f"; done
	@rmdir "$(DESTDIR)$(CMAKEDIR)" 2>/dev/null || true

clean:
	rm -rf $(B)
	rm -f $(L)/libkvcsa.so* $(L)/libkvcsa.a

# Source archive and Debian packages, see docs/packaging.md.
dist:
	@lib/debian/make_dist.sh $(B) kvcsa-$(VERSION)
deb: dist
	@lib/debian/make_deb.sh $(B) $(VERSION) $(ABI)

define HELP
kvcsa $(VERSION), soname $(SONAME)

What to run
  make               libraries into lib/, the kvcsa command and the examples into build/
  make wheel         the Python package with the library inside, into build/wheel
  make demo          build, then let the shipped model write; installs missing packages
  make check         build and test everything that needs no GPU and no network, within minutes
  make bench         measure on this machine, into build/bench.json (BENCH_ARGS: arguments of the program)
  make bench-peers   build what the benchmark compares with: fetches packages, ten minutes (PEERS: which)
  make bench-report  write the tables and the picture of docs/benchmarks.md from the results
  make measure       what each saving does to the answers: writes docs/measurements.md, about ten minutes
  make doc           the reference of the header as HTML, into build/doc/html; needs doxygen and python3
  make install       libraries, header, kvcsa.pc, the command and its manual page under DESTDIR and PREFIX
  make uninstall     remove exactly what install wrote
  make clean         remove what was built
  make dist          source archive of the last commit, the same bytes every time
  make deb           Debian packages libkvcsa$(ABI), libkvcsa-dev and kvcsa of it, into build/deb
  make help          this text

For those who change it
  make cuda          the CUDA plug-in lib/libkvcsa_cuda.so; needs nvcc (NVCC, CUDA_ARCHS)
  make check-cuda    its tests, and those of sessions, on a device; fails where there is none. make check has an emulated one
  make bench-cuda    times of its operators on a device, beside the device's own copies
  make check-plugin  build it, look at what it exports and at what its kernels need
  make check-apart   tests of sessions on a device whose memory the host cannot touch (APART_TESTS: patterns of programs)
  make check-all     check, check-apart, gcc and clang with -Werror, both sanitizers, all masks, kernels for Arm, one minute of each fuzzer
  make check-werror  everything with gcc and with clang, warnings are errors
  make check-asan    tests under the address and undefined-behaviour sanitizers
  make check-tsan    tests of threads under the thread sanitizer
  make check-valgrind  tests of the public interface under valgrind's memcheck (VALGRIND_TESTS: patterns of programs)
  make check-old     programs and libraries of older releases, built from the history, beside today's
  make check-masks   the tests once more for each narrower instruction set of this machine
  make check-neon    the tests for Armv8-A under qemu (NEON_TESTS: patterns of programs), make neon-build builds them
  make mingw         libraries, command and examples for Windows x86-64 into build/mingw; builds what they link from Debian's sources
  make check-mingw   runs them under wine
  make check-large   a million tokens for real; the real geometry against the oracle: ORACLE=path/to/v41_oracle.py
  make fuzz          libFuzzer (clang) on every target, FUZZ_SECONDS each
  make fuzz-replay   the stored fuzz inputs, with any compiler
  make abi           compare the library with the last release's ABI (lib/kvcsa.abi)
  make abi-update    write lib/kvcsa.abi; only when a release is made
  make libs examples tests tools fuzzers   build a part
  make deps deps-all say what is missing and install it (Debian, as root)

Variables
  CC CFLAGS CPPFLAGS LDFLAGS LDLIBS   the compiler and your flags; ours are added   [$(CC), $(CFLAGS)]
  PREFIX BINDIR LIBDIR INCLUDEDIR MANDIR DESTDIR   where install writes              [$(PREFIX)]
  INSTALL_RPATH  where the installed command looks for the library                   [relative to itself]
  B, L           folders of objects and of libraries; change both for a variant     [$(B), $(L)]
  V=1            show every command
  JOBS           parallel jobs where -j was not given                                [$(JOBS)]
  CHECK_CFLAGS ASAN_CFLAGS TSAN_CFLAGS FUZZ_CFLAGS   flags of the variants
  FUZZ_SECONDS   time for each fuzz target                                           [$(FUZZ_SECONDS)]
  TSAN_TESTS     programs that check-tsan runs; APART_QUICK: of APART_TESTS, those that check runs
  BENCH_ARGS     arguments of the benchmark
  LDDEFS         linker flag against undefined symbols                               [$(LDDEFS)]
  GGML_CFLAGS GGML_LIBS   where ggml is, for its example; pkg-config is asked where they are not given
  CLANG PYTHON   clang for fuzz and check-werror; python for check-large and doc             [$(CLANG), $(PYTHON)]
endef
export HELP
help:
	@printf '%s\n' "$$HELP"

-include $(ALL_OBJ:.o=.d) $(EMU_OBJ:.o=.d) $(patsubst %.cc,$(B)/emu/%.d,$(filter %.cc,$(CUDA_TESTS))) \
  $(patsubst %.cc,$(B)/obj/%.d,$(CXX_EXAMPLES))
