// Tests `lockstep run` whose first agent etcd elects, on hosts that are network namespaces.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>

#include "lockstep/cli/run/hosts_test.h"
#include "lockstep/core/net.h"

namespace lockstep::inline v0::cli {
namespace run_elected_mp_test {

using namespace hosts_test;  // NOLINT: a test's own helpers
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kEtcdHost = 3;

class RunElected : public HostsTest {
 protected:
  RunElected() : HostsTest(4) {}

  void SetUp() override {
    HostsTest::SetUp();
    if (IsSkipped()) return;
    for (const char* program : {"etcd", "etcdctl"}) {
      try {
        find_program(program);
      } catch (const LaunchError&) {
        GTEST_SKIP() << program << " is not on PATH (Debian: etcd-server, etcd-client)";
      }
    }
    if (lockstep({"run", "--nnodes", "2", "--rdzv-backend", "etcd", "--rdzv-endpoint",
                  "127.0.0.1:1", "--rdzv-id", "probe", "--rdzv-conf", "join_timeout=0.1", "true"})
            .err.find("was built without etcd") != std::string::npos)
      GTEST_SKIP() << "this lockstep was built without etcd";
  }
  void TearDown() override {
    stop_etcd();
    HostsTest::TearDown();
  }

  void start_etcd(const Words& more = {}, const std::string& scheme = "http") {
    const std::string url = scheme + "://10.77.0.4:2379", peers = "http://127.0.0.1:2380";
    Words words = network_->prefix(kEtcdHost);
    words.insert(words.end(),
                 {"env", "ETCD_UNSUPPORTED_ARCH=arm64", "etcd", "--data-dir",
                  folder_.path().string() + "/etcd", "--listen-client-urls", url,
                  "--advertise-client-urls", url, "--listen-peer-urls", peers,
                  "--initial-advertise-peer-urls", peers, "--initial-cluster", "default=" + peers});
    words.insert(words.end(), more.begin(), more.end());
    etcd_ = std::make_unique<Running>(words);
    network_->on(kEtcdHost, [] { connect_tcp({"10.77.0.4", 2379}, Deadline::seconds(20)); });
  }
  void stop_etcd() {
    if (!etcd_) return;
    ::kill(etcd_->process().pid(), SIGKILL);
    etcd_->finish();
    etcd_.reset();
  }
  std::string etcdctl(const Words& words) {
    Words command = network_->prefix(kEtcdHost);
    command.insert(command.end(),
                   {"env", "ETCDCTL_API=3", "etcdctl", "--endpoints", "10.77.0.4:2379"});
    command.insert(command.end(), words.begin(), words.end());
    const Ended ended = run(command);
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended.out;
  }

  static Words elected(const std::string& nodes, const Words& rest, const std::string& conf = "") {
    Words words = {"--nnodes",
                   nodes,
                   "--rdzv-backend",
                   "etcd",
                   "--rdzv-endpoint",
                   "10.77.0.4:2379",
                   "--rdzv-id",
                   "job9",
                   "--on-failure",
                   "restart",
                   "--rdzv-conf",
                   "keep_alive_interval=0.2,keep_alive_max_attempt=10,last_call_timeout=1,"
                   "join_timeout=60" +
                       conf};
    words.insert(words.end(), rest.begin(), rest.end());
    return words;
  }
  Words rank_until_done() const {
    return {"/bin/sh", "-c",
            "echo a generation has $WORLD_SIZE at $LOCKSTEP_GENERATION, pid $$" +
                and_wait_until_done()};
  }
  static std::string begun(int ranks) {
    return "a generation has " + std::to_string(ranks) + " at";
  }

  std::unique_ptr<Running> etcd_;
};

TEST_F(RunElected, AnotherAgentTakesOverFromTheFirst) {
  start_etcd();
  const Words words = elected("1:3", rank_until_done());
  auto first = start(0, words);
  first->await_output(begun(1));  // it leads from here on
  auto second = start(1, words);
  auto third = start(2, words);
  second->await_output(begun(3));
  third->await_output(begun(3));
  ::kill(agent_on(*network_, 0), SIGKILL);
  EXPECT_NE(first->finish(), 0);
  second->await_output(begun(2));
  third->await_output(begun(2));
  // The host comes back.
  first = start(0, words);
  first->await_output(begun(3));
  let_them_be_done({first.get(), second.get(), third.get()});
  EXPECT_THAT(second->err + third->err,
              AllOf(HasSubstr("restart, not counted: the agent that led vanished: its connection "
                              "was closed; 3 hosts -> 2, 3 ranks -> 2\n"),
                    HasSubstr("restart, not counted: host0 joined; 2 hosts -> 3")));
}

// The leader's agent serves the ranks' store, without which they cannot meet again.
TEST_F(RunElected, ASpareTakesALostHostsPlaceAndAllBeginAnewWithoutTheLeader) {
  start_etcd();
  Words words = elected("2", rank_until_done());
  *std::find(words.begin(), words.end(), "restart") = "replace";
  words.insert(words.begin(), {"--spare-nodes", "2", "--max-restarts", "1"});
  auto leader = start(0, words);
  auto other = start(1, words);
  leader->await_output(begun(2));
  other->await_output(begun(2));
  int leads = 0;
  if (etcdctl({"get", "/lockstep/job9/leader"}).find("10.77.0.2:") != std::string::npos) {
    std::swap(leader, other);
    leads = 1;
  }
  const std::string as_spare = "this one is a spare";
  auto third = start(2, words);
  third->await_error(as_spare);
  ::kill(agent_on(*network_, 1 - leads), SIGKILL);
  EXPECT_NE(other->finish(), 0);
  third->await_output(begun(2));
  other = start(1 - leads, words);
  other->await_error(as_spare);
  ::kill(agent_on(*network_, leads), SIGKILL);
  EXPECT_NE(leader->finish(), 0);
  other->await_output(begun(2));
  third->await_output(begun(2), 2);
  EXPECT_THAT(other->err + third->err,
              HasSubstr("restart, not counted: the agent that led vanished"));
  let_them_be_done({other.get(), third.get()});
}

TEST_F(RunElected, OneThatOnlySleptStepsDownAndJoins) {
  start_etcd();
  const Words words = elected("1:3", rank_until_done());
  auto first = start(0, words);
  first->await_output(begun(1));
  auto second = start(1, words);
  auto third = start(2, words);
  second->await_output(begun(3));
  third->await_output(begun(3));
  const pid_t sleeper = agent_on(*network_, 0);
  ::kill(sleeper, SIGSTOP);
  second->await_output(begun(2));
  for (const int pid : pids_in(first->out)) EXPECT_FALSE(alive(pid)) << pid;
  ::kill(sleeper, SIGCONT);
  second->await_output(begun(3), 2);
  let_them_be_done({first.get(), second.get(), third.get()});
}

TEST_F(RunElected, WhileEtcdIsAwayWhatRunsGoesOnAndNothingBegins) {
  start_etcd();
  const std::string go = folder_.path().string() + "/go";
  const std::string script =
      "echo a generation has $WORLD_SIZE at $LOCKSTEP_GENERATION; until [ -e " + go +
      "$LOCKSTEP_GENERATION ]; do sleep 0.02; done; [ "
      "$LOCKSTEP_GENERATION$RANK != 01 ] || kill -9 $$; [ "
      "$LOCKSTEP_GENERATION = 1 ] || sleep 60";
  const Words words = elected("2", {"--max-restarts", "1", "/bin/sh", "-c", script});
  auto first = start(0, words);
  auto second = start(1, words);
  first->await_output("at 0");
  second->await_output("at 0");
  stop_etcd();
  std::this_thread::sleep_for(std::chrono::seconds(4));  // longer than the lease
  std::ofstream(go + "0") << "now";
  std::this_thread::sleep_for(std::chrono::seconds(2));
  first->read_some();
  EXPECT_THAT(first->out, Not(HasSubstr("at 1")));
  start_etcd();
  first->await_output("at 1");
  second->await_output("at 1");
  std::ofstream(go + "1") << "now";
  for (auto* agent : {&first, &second}) EXPECT_EQ((*agent)->finish(), 0) << (*agent)->err;
}

TEST_F(RunElected, WithAUserAndAPassword) {
  start_etcd();
  etcdctl({"user", "add", "root:secret"});
  etcdctl({"user", "grant-role", "root", "root"});
  etcdctl({"auth", "enable"});
  const std::string good = folder_.write("good", "secret\n"), bad = folder_.write("bad", "other\n");
  Ended ended = run_on(0, elected("1:2", {"true"}, ",user=root,password-file=" + bad));
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("etcd at 10.77.0.4:2379 cannot be used: etcdserver: "
                                   "authentication failed, invalid user ID or password"));
  ended = run_on(0, elected("1:2", {"true"}));
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("cannot be used: etcdserver: user name is empty"));
  ended = run_on(
      0, elected("1:2", {"/bin/sh", "-c", "echo $WORLD_SIZE"}, ",user=root,password-file=" + good));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "1\n");
}

TEST_F(RunElected, OverTlsWithCertificates) {
  const std::string at = folder_.path().string();
  const Ended made =
      run({"/bin/sh", "-c",
           "cd " + at +
               " && openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out "
               "ca.pem -days 2 -subj /CN=ca && openssl req -newkey rsa:2048 -nodes "
               "-keyout key.pem -out c.csr -subj /CN=etcd && echo "
               "subjectAltName=IP:10.77.0.4 > ext && openssl x509 -req -in c.csr -CA "
               "ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out "
               "cert.pem"});
  if (made.code != 0) GTEST_SKIP() << "openssl(1) makes no certificate: " << made.err;
  start_etcd({"--cert-file", at + "/cert.pem", "--key-file", at + "/key.pem", "--client-cert-auth",
              "--trusted-ca-file", at + "/ca.pem"},
             "https");
  const std::string own = ",cert=" + at + "/cert.pem,key=" + at + "/key.pem";
  Ended ended = run_on(
      0, elected("1:2", {"/bin/sh", "-c", "echo $WORLD_SIZE"}, own + ",cacert=" + at + "/ca.pem"));
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(ended.out, "1\n");
  ended = run_on(0, elected("1:2", {"true"}, own));
  EXPECT_EQ(ended.code, 2) << "an authority that nobody knows";
  EXPECT_THAT(ended.err,
              HasSubstr("etcd at 10.77.0.4:2379 cannot be used: SSL certificate problem"));
}

TEST_F(RunElected, AnEtcdThatIsNotThereAndAnotherJobOfTheSameIdAreOneLine) {
  Ended ended = run_on(0, elected("1:2", {"true"}, ",join_timeout=2"));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("etcd at 10.77.0.4:2379"));
  EXPECT_THAT(ended.err, HasSubstr("connect to 10.77.0.4 port 2379"));
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  start_etcd();
  auto first = start(0, elected("1:2", rank_until_done()));
  first->await_output(begun(1));
  Words command = network_->prefix(1);
  command.insert(command.end(), {"env", "LOCKSTEP_SECRET=another", lockstep_program(), "run"});
  const Words words = elected("1:2", {"true"});
  command.insert(command.end(), words.begin(), words.end());
  ended = run(command);
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("secret"), HasSubstr("job9")));
  let_them_be_done({first.get()});
}

}  // namespace run_elected_mp_test
}  // namespace lockstep::inline v0::cli
