// gloo and mpi over several hosts, and mpirun's ranks over other engines; the hosts are network
// namespaces that the test makes.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <thread>
#include <tuple>

#include "lockstep/comm/init.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/core/subprocess.h"
#include "lockstep/launch/internal/mpi_test_support.h"
#include "lockstep/launch/mpirun.h"
#include "lockstep/testing/long_tests.h"
#include "lockstep/testing/mpirun_hosts.h"
#include "lockstep/testing/network_namespaces.h"
#include "lockstep/testing/operation_suite.h"

namespace lockstep::inline v0::engines_hosts_mp_test {
namespace {

namespace fs = std::filesystem;
using launch::MpiFamily;

constexpr int kHosts = 2;
constexpr int kLocal = 2;  // ranks a host
constexpr int kRanks = kHosts * kLocal;
constexpr const char* kPort = "29541";
// The part that a rank plays; unset in the parent.
constexpr const char* kRole = "LOCKSTEP_TEST_ROLE";
constexpr const char* kNotes = "LOCKSTEP_TEST_NOTES";  // the file for reports; unset: stdout
constexpr auto kCutTimeout = std::chrono::seconds(4);

// ---- the parts of the ranks ----

// Writes to a file if the rank's output may be cut off.
void say(const std::string& text) {
  const auto notes = process_env()(kNotes);
  if (!notes) {
    std::cout << text << std::endl;
    return;
  }
  std::ofstream file(*notes, std::ios::app);
  file << text + "\n" << std::flush;
}

void all_operations(Communicator& comm) {
  EXPECT_EQ(comm.local_size(), kLocal);
  const testing::SuiteReport report = testing::run_operation_suite(
      comm,
      {.dtypes = {at::kFloat, at::kHalf, at::kBool}, .sizes = {0, 1009}, .every_root = false});
  for (const std::string& failure : report.failures) ADD_FAILURE() << failure;
  EXPECT_GT(report.checked, 100);
  // A group across the hosts, with more ranks on one of them.
  if (auto some = comm.split(comm.rank() == 0 ? -1 : 0, -comm.rank())) {
    const at::Tensor t = at::full({1000}, comm.rank());
    some->all_reduce(t);
    EXPECT_EQ(t[999].item<int64_t>(), kRanks * (kRanks - 1) / 2);
  }
  if (!::testing::Test::HasFailure()) say("all right");
}

// The last rank makes another call.
void mismatch(Communicator& comm) {
  try {
    if (comm.rank() == kRanks - 1)
      comm.broadcast(at::zeros({1'000'000}), 0);
    else
      comm.all_reduce(at::zeros({10}));
    for (int i = 0; i < 3; ++i) comm.barrier();
  } catch (const Mismatch& error) {
    const std::string text = error.what();
    if (text.find("ranks 0, 1, 2: #1 all_reduce sum float32 x 10 at ") != std::string::npos &&
        text.find("rank 3: #1 broadcast float32 x 1000000, root 0 at ") != std::string::npos)
      say("all right");
    else
      say(text);
  }
}

void until_the_cable_is_cut(Communicator& comm) {
  const at::Tensor t = at::zeros({100'000});
  say("running");
  auto start = std::chrono::steady_clock::now();
  const auto verdict = [&start](const std::exception& error) {
    const bool in_time =
        std::chrono::steady_clock::now() - start < kCutTimeout + std::chrono::seconds(2);
    say(std::string(in_time ? "all right: " : "too late: ") + error.what());
  };
  try {
    while (true) {
      start = std::chrono::steady_clock::now();
      comm.all_reduce(t);
    }
  } catch (const PeerLost& error) {
    verdict(error);
  } catch (const Timeout& error) {
    verdict(error);
  }
}

// mpirun distributes the ranks one by one: no two neighbours share a host.
void dealt_out(Communicator& comm) {
  EXPECT_EQ(comm.capabilities().backend, "hierarchical");
  EXPECT_EQ(comm.local_rank(), comm.rank() / kHosts);
  EXPECT_EQ(comm.node_rank(), comm.rank() % kHosts);
  all_operations(comm);
  Communicator again = init();
  const at::Tensor t = at::full({3}, 1.0);
  again.all_reduce(t);
  EXPECT_EQ(t.sum().item<double>(), 3.0 * kRanks);
}

// The last rank does not arrive.
void incomplete() {
  const EnvLookup env = process_env();
  if (*env_int(env, launch::mpi_launcher(env)->rank) == kRanks - 1) {
    say("all right");
  } else {
    try {
      init({.timeout = std::chrono::seconds(3)});
    } catch (const Timeout& error) {
      const std::string text = error.what();
      const bool told = text.find("a rank of this job has not called init()") != text.npos;
      say(told ? "all right" : text);
    }
  }
  std::this_thread::sleep_for(std::chrono::seconds(5));  // mpirun ends all ranks when one ends
  std::_Exit(0);
}

void be_a_rank(const std::string& backend, const std::string& role) {
  if (role == "incomplete") return incomplete();
  InitOptions options{.backend = backend, .timeout = std::chrono::seconds(60)};
  const EnvLookup env = process_env();
  if (backend == "gloo") {
    options.init_method = std::string("tcp://10.77.0.1:") + kPort;
    options.rank = static_cast<int>(*env_int(env, "LOCKSTEP_TEST_RANK"));
    options.world_size = kRanks;
  }
  if (role == "cut") options.timeout = kCutTimeout;
  Communicator comm = init(options);
  if (role == "operations") all_operations(comm);
  if (role == "mismatch") mismatch(comm);
  if (role == "dealt-out") dealt_out(comm);
  if (role == "cut") {
    until_the_cable_is_cut(comm);
    // mpirun ends all ranks when one ends, including those that have reported nothing yet; the
    // parent ends mpirun.
    if (launch::mpi_launcher(env) != nullptr) std::this_thread::sleep_for(std::chrono::seconds(60));
    std::_Exit(0);  // MPI and gloo could wait for the other host
  }
}

// ---- the parent ----

class Hosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto role = process_env()(kRole)) return;
    if (const std::string why = testing::NetworkNamespaces::unavailable(); !why.empty())
      GTEST_SKIP() << why;
    scratch_ = std::make_unique<TestDirectory>();
    network_ = std::make_unique<testing::NetworkNamespaces>(kHosts);
  }

  bool is_rank(const std::string& backend) {
    const auto role = process_env()(kRole);
    if (role) be_a_rank(backend, *role);
    return role.has_value();
  }

  std::vector<std::string> own_command() const {
    const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
    return {fs::read_symlink("/proc/self/exe").string(),
            std::string("--gtest_filter=") + info->test_suite_name() + "." + info->name(),
            "--gtest_brief=1", "--gtest_catch_exceptions=0"};
  }

  void start(SubprocessOptions options, const std::string& name) {
    const UniqueFd out(::creat((*scratch_ / name).c_str(), 0600));
    options.stdout_fd = options.stderr_fd = out.get();
    names_.push_back(name);
    running_.push_back(std::make_unique<Subprocess>(options));
  }

  void start_gloo(const std::string& role) {
    for (int rank = 0; rank < kRanks; ++rank) {
      SubprocessOptions options;
      options.command = network_->prefix(rank / kLocal);
      for (const std::string& word :
           {std::string("env"), std::string(kRole) + "=" + role,
            "LOCKSTEP_TEST_RANK=" + std::to_string(rank),
            std::string("LOCKSTEP_SECRET=of the test"), std::string("GLOO_SOCKET_IFNAME=eth0"),
            std::string("OMP_NUM_THREADS=1")})
        options.command.push_back(word);
      for (const std::string& word : own_command()) options.command.push_back(word);
      start(options, "rank" + std::to_string(rank));
    }
  }

  // Runs mpirun on host 0. `told`:
  // whether it is said where rank 0 serves the store. `dealt_out`: ranks are placed one by one on
  // the hosts.
  void start_mpi(MpiFamily family, const std::string& role, bool told, bool dealt_out = false) {
    std::map<std::string, std::string> variables = {{kRole, role},
                                                    {kNotes, (*scratch_ / "notes").string()}};
    if (told) {
      variables["MASTER_ADDR"] = "10.77.0.1";
      variables["MASTER_PORT"] = kPort;
      variables["LOCKSTEP_SECRET"] = "of the test";
    }
    outlasts_ = family == MpiFamily::kMpich;
    launch::MpirunJob job{.nproc = kRanks, .command = own_command()};
    if (family == MpiFamily::kOpenMpi) {
      if (dealt_out) job.flags.insert(job.flags.end(), {"--map-by", "node"});
      for (const auto& [name, value] : variables) {
        job.flags.emplace_back("-x");
        job.flags.push_back(name + "=" + value);
      }
    } else {
      if (dealt_out) job.flags.insert(job.flags.end(), {"-ppn", "1"});
      job.env = variables;
    }
    mpirun_ = std::make_unique<testing::MpirunHosts>(
        *network_, kLocal, [this](int host) { return network_->prefix(host); });
    SubprocessOptions options = mpirun_->process(*launch::find_mpirun_of(family), job);
    options.own_session = true;
    start(options, "mpirun");
  }

  // Returns all output, after every process has ended.
  std::string finish(std::chrono::seconds limit) {
    const Deadline deadline = Deadline::after(limit);
    std::string text;
    for (size_t i = 0; i < running_.size(); ++i) {
      try {
        running_[i]->wait(deadline);
      } catch (const Timeout& error) {
        // MPICH's mpirun may outlast its ranks by minutes, which is not an error here.
        const bool its_own = outlasts_ && names_[i].find("mpirun") != std::string::npos;
        text += (its_own ? "mpirun outlasted its ranks: " : "LATE: ") + std::string(error.what()) +
                "\n";
        running_[i]->signal_group(SIGKILL);
      }
      text += scratch_->read(names_[i]);
    }
    return text + scratch_->read("notes");
  }

  static int count(const std::string& text, const std::string& word) {
    int found = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
      ++found;
    return found;
  }

  void expect_all_right(const std::string& text) {
    EXPECT_EQ(count(text, "all right"), kRanks) << text;
    EXPECT_EQ(count(text, "LATE"), 0) << text;
  }

  void wait_for(const std::string& word, int times) {
    const Deadline deadline = Deadline::seconds(60);
    while (!deadline.expired()) {
      std::string text;
      for (const std::string& name : names_) text += scratch_->read(name);
      text += scratch_->read("notes");
      if (count(text, word) >= times) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    ADD_FAILURE() << "the ranks did not get as far as '" << word << "'";
  }

  std::unique_ptr<TestDirectory> scratch_;  // used by the parent
  std::unique_ptr<testing::NetworkNamespaces> network_;
  std::unique_ptr<testing::MpirunHosts> mpirun_;
  std::vector<std::unique_ptr<Subprocess>> running_;
  std::vector<std::string> names_;
  bool outlasts_ = false;  // mpirun may outlast its ranks
};

TEST_F(Hosts, EveryOperationOverGloo) {
  if (is_rank("gloo")) return;
  start_gloo("operations");
  expect_all_right(finish(std::chrono::seconds(120)));
}

TEST_F(Hosts, DifferentCallsOverGlooAreNamedOnAllHosts) {
  if (is_rank("gloo")) return;
  start_gloo("mismatch");
  expect_all_right(finish(std::chrono::seconds(60)));
}

TEST_F(Hosts, ACutCableEndsTheWaitsOverGloo) {
  if (is_rank("gloo")) return;
  start_gloo("cut");
  wait_for("running", kRanks);
  network_->cut(1);
  expect_all_right(finish(std::chrono::seconds(20)));
}

// Called by the parent, which starts mpirun.
std::string why_skipped(MpiFamily family) {
  return process_env()(kRole) ? "" : launch::lacks_mpirun(family);
}

class MpirunHosts : public Hosts, public ::testing::WithParamInterface<MpiFamily> {
 protected:
  void SetUp() override {
    if (const std::string why = why_skipped(GetParam()); !why.empty()) GTEST_SKIP() << why;
    Hosts::SetUp();
  }
};

TEST_P(MpirunHosts, MpirunNeedsNoAddressNorSecret) {
  if (is_rank("")) return;
  start_mpi(GetParam(), "dealt-out", false, true);
  expect_all_right(finish(std::chrono::seconds(120)));
  EXPECT_TRUE(running_.front()->poll()->ok()) << "MPI is finalised at the end";
}

TEST_P(MpirunHosts, MpiAndItsStoreNeedNoAddressNorSecret) {
  if (is_rank("mpi")) return;
  start_mpi(GetParam(), "mismatch", false);
  expect_all_right(finish(std::chrono::seconds(60)));
}

TEST_P(MpirunHosts, MpirunsRanksDoNotWaitForEverForOneThatDoesNotCome) {
  if (is_rank("")) return;
  start_mpi(GetParam(), "incomplete", false);
  expect_all_right(finish(std::chrono::seconds(60)));
}

// Between such hosts MPICH's mpirun may outlast its ranks by minutes, so it only runs with the long
// tests.
std::vector<launch::MpiFamily> families_between_hosts() {
  if (testing::long_tests()) return {launch::MpiFamily::kOpenMpi, launch::MpiFamily::kMpich};
  return {launch::MpiFamily::kOpenMpi};
}

INSTANTIATE_TEST_SUITE_P(Families, MpirunHosts, ::testing::ValuesIn(families_between_hosts()),
                         [](const auto& info) { return launch::name_of(info.param); });

// The same operations over MPI, and with it between the hosts.
class MpiHosts : public Hosts,
                 public ::testing::WithParamInterface<std::tuple<MpiFamily, const char*>> {
 protected:
  void SetUp() override {
    if (const std::string why = why_skipped(std::get<0>(GetParam())); !why.empty())
      GTEST_SKIP() << why;
    Hosts::SetUp();
  }
};

TEST_P(MpiHosts, EveryOperation) {
  const auto& [family, backend] = GetParam();
  if (is_rank(backend)) return;
  start_mpi(family, "operations", true);
  expect_all_right(finish(std::chrono::seconds(120)));
}

TEST_P(MpiHosts, DifferentCallsAreNamedOnAllHosts) {
  const auto& [family, backend] = GetParam();
  if (is_rank(backend)) return;
  start_mpi(family, "mismatch", true);
  expect_all_right(finish(std::chrono::seconds(60)));
}

TEST_P(MpiHosts, ACutCableEndsTheWaits) {
  const auto& [family, backend] = GetParam();
  if (is_rank(backend)) return;
  start_mpi(family, "cut", true);
  wait_for("running", kRanks);
  network_->cut(1);
  wait_for("all right", kRanks);
  // mpirun may wait for its daemon on the other host; removing the namespaces ends that.
  running_.front()->signal_group(SIGKILL);
  expect_all_right(finish(std::chrono::seconds(20)));
}

INSTANTIATE_TEST_SUITE_P(Backends, MpiHosts,
                         ::testing::Combine(::testing::ValuesIn(families_between_hosts()),
                                            ::testing::Values("mpi", "hierarchical:mpi")),
                         [](const auto& info) {
                           const bool alone = std::string(std::get<1>(info.param)) == "mpi";
                           return launch::name_of(std::get<0>(info.param)) +
                                  (alone ? "_mpi" : "_hierarchical_mpi");
                         });

}  // namespace
}  // namespace lockstep::inline v0::engines_hosts_mp_test
