// The common part of the tests of `lockstep run` on several hosts: hosts, which are network
// namespaces, and an ssh between them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <thread>

#include "lockstep/cli/cli_test_support.h"
#include "lockstep/core/internal/test_support.h"
#include "lockstep/testing/network_namespaces.h"

namespace lockstep::inline v0::cli {
namespace hosts_test {

using namespace cli_test_support;  // NOLINT: a test's own helpers
using lockstep::testing::NetworkNamespaces;

inline constexpr const char* kSecret = "a secret of the test";

inline std::string test_program() {
  return (std::filesystem::path(lockstep_program()).parent_path() / "tests" / "launch_test_program")
      .string();
}

inline std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

class HostsTest : public ::testing::Test {
 protected:
  explicit HostsTest(int hosts = 3) : hosts_(hosts) {}
  void SetUp() override {
    if (const std::string why = NetworkNamespaces::unavailable(); !why.empty()) GTEST_SKIP() << why;
    network_ = std::make_unique<NetworkNamespaces>(hosts_);
    // It does as ssh: the words after the host go to a shell there, with an environment of its own,
    // which outlives ssh.
    ssh_ = folder_.write(
        "ssh",
        "#!/bin/sh\nhost=$1; shift\ncase $host in\n"
        "10.77.0.1) set -- '" +
            network_->shell_prefix(0) +
            "' \"$*\";;\n"
            "10.77.0.2|hostB) set -- '" +
            network_->shell_prefix(1) +
            "' \"$*\";;\n"
            "10.77.0.3) set -- '" +
            network_->shell_prefix(2) +
            "' \"$*\";;\n"
            "*) echo \"ssh: Could not resolve hostname $host\" >&2; exit 255;;\nesac\n"
            "exec 3<&0\n$1 setsid env -i --default-signal PATH=\"$PATH\" sh -c \"$2\" <&3 3<&- &\n"
            "wait $!\n");
    ::chmod(ssh_.c_str(), 0700);
  }
  void TearDown() override {
    if (!network_) return;
    // No process is left on any host after any test.
    const Deadline deadline = Deadline::seconds(10);
    for (int host = 0; host < network_->size(); ++host) {
      while (!network_->processes(host).empty() && !deadline.expired())
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_TRUE(network_->processes(host).empty()) << "on host " << host;
    }
  }

  // `lockstep run` on a host.
  std::unique_ptr<Running> start(int host, const Words& words, bool secret = true) {
    Words command = network_->prefix(host);
    command.push_back("env");
    if (secret) command.push_back(std::string("LOCKSTEP_SECRET=") + kSecret);
    command.insert(command.end(), {"LOCKSTEP_SSH=" + ssh_, lockstep_program(), "run"});
    command.insert(command.end(), words.begin(), words.end());
    return std::make_unique<Running>(command);
  }

  Ended run_on(int host, const Words& words) {
    auto agent = start(host, words);
    Ended ended;
    ended.code = agent->finish();
    ended.out = agent->out;
    ended.err = agent->err;
    return ended;
  }

  // Ranks that run until the test ends them: their shell waits for this file.
  std::string done() const { return folder_.path().string() + "/done"; }
  std::string and_wait_until_done() const {
    return "; until [ -e " + done() + " ]; do sleep 0.02; done";
  }
  // Their agents then succeed.
  void let_them_be_done(std::initializer_list<Running*> agents) const {
    std::ofstream(done()) << "yes";
    for (Running* agent : agents) EXPECT_EQ(agent->finish(), 0) << agent->err;
  }

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  // `lockstep train lm`, with more options; its output is in that folder.
  Words train_lm(const std::string& strategy, const std::string& output, const Words& more) const {
    Words words = {lockstep_program(), "train",        "lm",         "--data",
                   "sentences",        "--batch-size", "2",          "--strategy",
                   strategy,           "--output",     path(output), "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // The number of lines that such a run has logged so far.
  std::ptrdiff_t lines_logged(const std::string& output) const {
    const std::string text = text_of(path(output) + "/metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }
  void expect_same_checkpoint(const std::string& a, const std::string& b) const {
    int files = 0;
    for (const auto& file : std::filesystem::directory_iterator(path(a) + "/checkpoints/last")) {
      if (file.path().extension() != ".safetensors") continue;
      ++files;
      const std::string name = file.path().filename();
      EXPECT_TRUE(text_of(path(b) + "/checkpoints/last/" + name) == text_of(file.path()))
          << b << ": " << name;
    }
    EXPECT_GE(files, 2) << "the model's and the optimizer's";
  }

  const int hosts_;
  TestDirectory folder_;
  std::string ssh_;
  std::unique_ptr<NetworkNamespaces> network_;
};

// The pid of the agent on a host.
inline pid_t agent_on(const NetworkNamespaces& network, int host) {
  for (const pid_t pid : network.processes(host)) {
    std::ifstream stream("/proc/" + std::to_string(pid) + "/cmdline");
    std::string words{std::istreambuf_iterator<char>(stream), {}};
    if (words.starts_with(lockstep_program())) return pid;
  }
  return 0;
}

}  // namespace hosts_test
}  // namespace lockstep::inline v0::cli
