// The findings of lockstep doctor, from made-up facts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/cli/doctor/checks.h"
#include "lockstep/cli/doctor/command.h"
#include "lockstep/cli/doctor/peer.h"
#include "lockstep/cli/usage.h"

namespace lockstep::inline v0::cli {
namespace doctor_test {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

HostFacts healthy() {
  HostFacts facts;
  facts.version = "0.1.0";
  facts.compiler = "gcc 12";
  facts.engine = "/x/lockstep-engine";
  facts.libtorch = "2.13.0 in /x/lib";
  facts.interfaces = {{"lo", "127.0.0.1", true}, {"eth0", "10.0.0.2", false}};
  facts.mtu = {{"lo", 65536}, {"eth0", 1500}};
  facts.host_name = "node1";
  facts.resolved = {"10.0.0.2"};
  facts.clock_source = "tsc";
  facts.unix_seconds = 1'800'000'000;
  facts.shm_size = 8 * kGiB;
  facts.shm_free = 8 * kGiB;
  facts.files = 65536;
  facts.memory_free = 16 * kGiB;
  facts.cpus_online = 4;
  facts.cpus_allowed = {0, 1, 2, 3};
  facts.cpus_usable = 4;
  facts.huge_pages = "madvise";
  facts.mpi[launch::MpiFamily::kOpenMpi].file = "/usr/lib/libmpi.so.40";
  facts.mpi[launch::MpiFamily::kMpich].file = "/usr/lib/libmpich.so.12";
  facts.mpirun = launch::MpiFamily::kMpich;
  facts.nccl.error = "no such file";
  return facts;
}

// Returns the finding of `topic`, for facts with one fault.
Finding finding_of(const std::string& topic, const std::function<void(HostFacts&)>& change) {
  HostFacts facts = healthy();
  change(facts);
  for (const Finding& finding : judge(facts))
    if (finding.topic == topic) return finding;
  ADD_FAILURE() << "no finding about " << topic;
  return {};
}

TEST(Judge, AHealthyHostHasNoWarning) {
  for (const Finding& finding : judge(healthy()))
    EXPECT_EQ(finding.level, Level::kOk) << finding.topic << ": " << finding.found;
}

TEST(Judge, WhatIsNotAsItShouldBeIsFoundWithWhatToDo) {
  struct Case {
    const char* topic;
    std::function<void(HostFacts&)> change;
    Level level;
    const char* found;
    const char* todo;
  };
  const std::vector<Case> cases = {
      {"versions", [](auto& f) { f.kernels = "neon"; }, Level::kOk, "kernels with neon", ""},
      {"versions", [](auto& f) { f.kernels_error = "it is one of default"; }, Level::kProblem, "",
       "it is one of default"},
      {"versions", [](auto& f) { f.engine = ""; }, Level::kWarning, "not installed", "quickstart"},
      {"versions", [](auto& f) { f.libtorch = ""; }, Level::kProblem, "libtorch was not found",
       "LD_LIBRARY_PATH"},
      {"versions",
       [](auto& f) {
         f.builds = {"2.13", "2.14"};
         f.engine_error = "no libtorch was found";
       },
       Level::kProblem, "installed for libtorch 2.13 and 2.14", "no libtorch was found"},
      {"interfaces", [](auto& f) { f.interfaces = {}; }, Level::kProblem, "none", "ip link set lo"},
      {"interfaces", [](auto& f) { f.interfaces.pop_back(); }, Level::kWarning, "127.0.0.1",
       "one-host jobs work"},
      {"interfaces", [](auto& f) { f.interfaces.erase(f.interfaces.begin()); }, Level::kProblem,
       "10.0.0.2", "loopback"},
      {"interfaces", [](auto& f) { f.interfaces.push_back({"eth1", "10.1.0.2", false}); },
       Level::kOk, "other hosts would use 10.0.0.2", "--interface"},
      {"MTU", [](auto& f) { f.mtu["eth0"] = 576; }, Level::kWarning, "eth0 576", "tunnel"},
      {"name", [](auto& f) { f.resolved = {}; }, Level::kOk, "does not resolve",
       "nothing for Lockstep"},
      {"name", [](auto& f) { f.resolved = {"10.9.9.9"}; }, Level::kWarning, "none of this host's",
       "/etc/hosts"},
      {"name", [](auto& f) { f.resolved = {"127.0.1.1"}; }, Level::kOk, "127.0.1.1", "loopback"},
      {"clock", [](auto& f) { f.clock_steady = false; }, Level::kProblem, "backwards", "chronyd"},
      {"clock", [](auto& f) { f.unix_seconds = 1000; }, Level::kProblem, "before 2024", "set"},
      {"clock", [](auto& f) { f.clock_drift = 0.5; }, Level::kWarning, "differ by 50", "care"},
      {"clock", [](auto& f) { f.clock_source = "hpet"; }, Level::kWarning, "hpet", "slower"},
      {"shared memory", [](auto& f) { f.memfd_error = "memfd_create: denied"; }, Level::kProblem,
       "denied", "seccomp"},
      {"shared memory", [](auto& f) { f.shm_size = 64 << 20; }, Level::kOk, "64 MiB",
       "nothing for Lockstep"},
      {"limits", [](auto& f) { f.files = 256; }, Level::kWarning, "256", "ulimit -n"},
      {"limits", [](auto& f) { f.files = 64; }, Level::kProblem, "64", "ulimit -n"},
      {"limits", [](auto& f) { f.memlock = 65536; }, Level::kOk, "64 KiB", "RDMA"},
      {"memory", [](auto& f) { f.memory_free = 500 << 20; }, Level::kWarning, "500 MiB", "200 MiB"},
      {"memory",
       [](auto& f) {
         f.memory_limit = 2 * kGiB;
         f.memory_used = 2 * kGiB - 1;
       },
       Level::kProblem, "may use 2.0 GiB", "raise the limit"},
      {"processors", [](auto& f) { f.cpus_allowed = {0}, f.cpus_usable = 1; }, Level::kOk,
       "1 usable of 4", "confined"},
      {"processors", [](auto& f) { f.cpus_usable = 2; }, Level::kOk, "2 usable of 4", "quota"},
      {"processors", [](auto& f) { f.load = 20; }, Level::kWarning, "load 20.0", "top"},
      {"huge pages", [](auto& f) { f.huge_pages = "never"; }, Level::kOk, "never", "madvise"},
      {"rank to rank",
       [](auto& f) {
         f.reach_error = "Operation not permitted";
         f.ptrace_scope = 1;
       },
       Level::kWarning, "not permitted (ptrace_scope 1)", "SYS_PTRACE"},
      {"processes",
       [](auto& f) {
         f.processes = {{12, "./train", 70, true, true}, {13, "lockstep run", 7, false, false}};
       },
       Level::kWarning, "12 ./train (1 min 10 s)", "kill PID"},
      {"processes", [](auto& f) { f.processes = {{13, "lockstep run", 7, false, false}}; },
       Level::kOk, "running jobs: 13 lockstep run", ""},
      {"backend mpi", [](auto&) {}, Level::kOk,
       "Open MPI, /usr/lib/libmpi.so.40, MPICH, /usr/lib/libmpich.so.12; mpirun is MPICH's", ""},
      {"backend mpi",
       [](auto& f) {
         for (auto& [family, library] : f.mpi) library = {"", "cannot open"};
       },
       Level::kOk, "cannot open", "apt install"},
      {"backend mpi", [](auto& f) { f.mpi[launch::MpiFamily::kMpich] = {"", "cannot open"}; },
       Level::kWarning, "mpirun is MPICH's, whose library is missing", "apt install mpich"},
      {"environment", [](auto& f) { f.variables["LOCKSTEP_BACKEND"] = "gloo"; }, Level::kOk,
       "LOCKSTEP_BACKEND=gloo", ""},
  };
  for (const Case& one : cases) {
    const Finding finding = finding_of(one.topic, one.change);
    EXPECT_EQ(to_string(finding.level), std::string(to_string(one.level))) << finding.found;
    EXPECT_THAT(finding.found, HasSubstr(one.found));
    EXPECT_THAT(finding.todo, HasSubstr(one.todo)) << finding.found;
  }
}

TEST(Findings, AreALineEachWithWhatToDoBelow) {
  const std::vector<Finding> findings = {{Level::kOk, "clock", "tsc", ""},
                                         {Level::kProblem, "interfaces", "none", "raise one"}};
  EXPECT_EQ(format_findings(findings),
            "ok       clock       tsc\n"
            "problem  interfaces  none\n"
            "                     -> raise one\n");
  // On a narrow terminal words stay whole, and continued text is aligned.
  EXPECT_EQ(format_findings({{Level::kOk, "name", "one two three", "four five six"}}, 28),
            "ok       name  one two three\n"
            "               -> four five\n"
            "                  six\n");
  EXPECT_TRUE(any_problem(findings));
  EXPECT_FALSE(any_problem({findings[0], {Level::kWarning, "x", "y", "z"}}));
  EXPECT_EQ(json_of(findings)[1].at("level"), "problem");
}

TEST(HostFacts, ThisHostHasThem) {
  const HostFacts facts = host_facts();
  EXPECT_FALSE(facts.host_name.empty());
  EXPECT_GE(facts.cpus_online, 1);
  EXPECT_GT(facts.memory_free, 0u);
  EXPECT_TRUE(facts.clock_steady);
  EXPECT_EQ(facts.mpi.size(), 2u);
  for (const auto& [family, library] : facts.mpi)
    EXPECT_NE(library.file.empty(), library.error.empty()) << to_string(family);
  EXPECT_FALSE(facts.version.empty());
}

TEST(ClockOffset, TrustsTheShortestRoundTrip) {
  const int64_t ms = 1'000'000;
  const ClockOffset offset =
      clock_offset({{0, 900 * ms, 50 * ms}, {100 * ms, 601 * ms, 102 * ms}, {0, 1, 70 * ms}});
  EXPECT_NEAR(offset.seconds, 0.5, 1e-9);
  EXPECT_NEAR(offset.uncertainty, 0.001, 1e-9);
  EXPECT_NEAR(offset.round_trip, 0.05, 1e-9);
}

TEST(DoctorCommand, RefusesFlagsThatContradictEachOther) {
  EXPECT_THROW(doctor_command({"--trace", "x", "--listen", "0"}), UsageError);
  EXPECT_THROW(doctor_command({"--peer", "x:1", "--listen", "0"}), UsageError);
  EXPECT_THROW(doctor_command({"--interface", "lo"}), UsageError);
  EXPECT_THROW(doctor_command({"--listen", "70000"}), UsageError);
  EXPECT_THROW(doctor_command({"--nonsense"}), UsageError);
  EXPECT_THROW(doctor_command({"--every", "1"}), UsageError) << "the default, but given";
  EXPECT_THROW(doctor_command({"--trace", ""}), UsageError);
  EXPECT_THAT(doctor_help(), AllOf(HasSubstr("--trace"), HasSubstr("LOCKSTEP_SECRET")));
}

}  // namespace doctor_test
}  // namespace lockstep::inline v0::cli
