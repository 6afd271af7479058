// The processes of faults_mp_test.cpp: their functions, and their checks of the outcome.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <thread>
#include <typeinfo>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/core/process_state.h"
#include "lockstep/rpc/faults_test_support.h"
#include "lockstep/rpc/internal/core.h"
#include "lockstep/store/tcp_store.h"
#include "lockstep/testing/lone_ranks.h"

namespace lockstep::inline v0::rpc::faults_mp_test {

using namespace std::chrono_literals;

Deadline patience() {
  return Deadline::seconds(40);
}

unsigned told_by(const Error& error) {
  if (dynamic_cast<const PeerLost*>(&error)) return kLost;
  if (dynamic_cast<const Timeout*>(&error)) return kLate;
  if (dynamic_cast<const RemoteError*>(&error)) return kRemote;
  if (dynamic_cast<const StoreError*>(&error)) return kStore;
  return dynamic_cast<const Cancelled*>(&error) ? kCancelled : 0U;
}

// Causes the fault in its step.
class StrikingSgd final : public torch::optim::SGD {
 public:
  StrikingSgd(std::vector<at::Tensor> parameters, std::function<void()> strike)
      : SGD(std::move(parameters), torch::optim::SGDOptions(1)), strike_(std::move(strike)) {}
  at::Tensor step(LossClosure closure) override {
    strike_();
    return SGD::step(std::move(closure));
  }

 private:
  std::function<void()> strike_;
};

Part::Part(const Fault& fault, int signal)
    : fault_(fault),
      signal_(signal),
      role_(static_cast<Role>(env_int(process_env(), "RANK", 0, kRoles - 1).value())),
      phase_(fault.phase),
      weight_(at::ones({4}).requires_grad_(true)) {
  store_ = std::make_shared<TcpStore>(parse_host_port(process_env()("LOCKSTEP_STORE").value()),
                                      Secret::from_env(process_env()).value(), patience());
  store_->set(std::string("pid/") + kNames[role_], std::to_string(::getpid()));
  for (const char* name : kNames)
    pids_.push_back(std::stoi(store_->get(std::string("pid/") + name, patience())));
}

void Part::hit() {
  if (hit_.exchange(true)) return;
  say("hit");
  send(fault_.victim, signal_);
}

void Part::send(Role role, int signal) const {
  const pid_t pid = pids_[role];
  if (role == role_) {
    ::kill(pid, signal);
    while (true) std::this_thread::sleep_for(1h);  // the signal may take a moment
  }
  ASSERT_EQ(::kill(pid, signal), 0);
  for (const Deadline end = patience(); signal == SIGSTOP && process_state(pid) != 'T';) {
    ASSERT_FALSE(end.expired());
    std::this_thread::sleep_for(1ms);
  }
}

Part::Noted Part::run(const std::function<void()>& body) {
  const Deadline begin = Deadline::seconds(0);
  Noted noted;
  noted.told = kWell;
  try {
    body();
  } catch (const Error& error) {
    noted.text = error.what();
    noted.told = told_by(error);
    if (noted.told == 0) noted.text = std::string(typeid(error).name()) + ": " + noted.text;
  }
  noted.seconds = begin.elapsed_seconds();
  return noted;
}

void Part::check(const Noted& noted, unsigned told, const std::string& names) const {
  EXPECT_NE(noted.told & told, 0U)
      << kNames[role_] << " got " << noted.told << ", not one of " << told << ": " << noted.text;
  if (noted.told != kWell) {
    EXPECT_THAT(noted.text, ::testing::ContainsRegex(names));
    EXPECT_EQ(noted.text.find('\n'), std::string::npos) << noted.text;
  }
  const double limit = kSlack + (noted.told == kLate || noted.told == kRemote
                                     ? std::chrono::duration<double>(kShort).count()
                                     : 0);
  EXPECT_LT(noted.seconds, limit) << noted.text;
}

void Part::expect_told(const std::function<void()>& body) {
  expect(killed() ? fault_.killed : fault_.stopped, fault_.names, body);
}

void Part::expect(unsigned told, const std::string& names, const std::function<void()>& body) {
  check(run(body), told, names);
}

void Part::note(const std::function<void()>& body) {
  std::exception_ptr thrown;
  const Noted noted = run([&] {
    try {
      body();
    } catch (...) {
      thrown = std::current_exception();
      throw;
    }
  });
  {
    const MutexLock lock(mutex_);
    noted_ = noted;
  }
  if (thrown) std::rethrow_exception(thrown);
}

void Part::expect_noted(unsigned told, const std::string& names) {
  std::optional<Noted> noted;
  eventually("the function that meets the fault ends", [&] {
    const MutexLock lock(mutex_);
    noted = noted_;
    return noted.has_value();
  });
  if (noted) check(*noted, told, names);
}

void Part::expect_cancelled() {
  eventually("a function is told that its caller waits no longer",
             [this] { return cancelled_ >= 0; });
  EXPECT_EQ(cancelled_, 1) << kNames[role_];
}

void Part::eventually(const char* what, const std::function<bool()>& holds) {
  const Deadline end = Deadline::seconds(kSlack + 2 * 1.0 + 2);  // lease or doubt, and the slack
  while (!holds() && !end.expired()) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(holds()) << what;
}

void Part::expect_nothing_kept() {
  eventually("objects are kept for nobody", [this] { return agent_->kept_objects() == 0; });
  EXPECT_EQ(agent_->kept_objects(), 0U) << kNames[role_];
}

void Part::expect_arrived() {
  eventually("references arrive",
             [this] { return agent_->core()->sent_references().messages() == 0; });
}

void Part::expect_no_context() {
  eventually("contexts are forgotten", [this] { return agent_->core()->contexts().size() == 0; });
}

void Part::say(const std::string& word) {
  store_->set("word/" + word, "1");
}
void Part::await(const std::string& word) {
  store_->get("word/" + word, patience());
}
void Part::meet(const std::string& word) {
  say(word + "/" + kNames[role_]);
  for (int role = 0; role < kRoles; ++role)
    if (role != fault_.victim) await(word + "/" + kNames[role]);
}

void Part::await_left(const char* name) {
  store_->get(std::string("rpc-left/") + name, patience());
}

int Part::use_kept() {
  RRef<Count> kept;
  {
    const MutexLock lock(mutex_);
    kept = kept_;
  }
  return kept.rpc_sync<int>("value");
}

const at::Tensor& Part::sevens() {
  if (!sevens_.defined()) sevens_ = at::full({96 << 20}, 7, at::kByte);
  return sevens_;
}

bool Part::are_sevens(const at::Tensor& tensor) {
  return tensor.numel() == (96 << 20) && tensor.min().item<int>() == 7 &&
         tensor.max().item<int>() == 7;
}

// y = (x w) through c, and then w again.
at::Tensor Part::forward_b(const at::Tensor& x) {
  at::Tensor y = Agent::current().rpc_sync<at::Tensor>("c", "forward_c", x * weight_) * weight_;
  if (victim() == kC) return y;
  if (phase_ == "InForward") hit();
  if (phase_ == "InBackward")
    y.register_hook([this](const at::Tensor& gradient) {
      hit();
      return gradient;
    });
  return y;
}

at::Tensor Part::forward_c(const at::Tensor& x) {
  at::Tensor y = x * weight_;
  if (victim() != kC) return y;
  if (phase_ == "InForward") hit();
  if (phase_ == "InBackward")
    y.register_hook([this](const at::Tensor& gradient) {
      hit();
      return gradient;
    });
  return y;
}

Registry Part::functions() {
  Registry registry;
  registry.add("ping", [] {});
  registry.add("wait", [this] {
    hit();
    for (const Deadline end = Deadline::seconds(2 * kSlack); !cancelled() && !end.expired();)
      std::this_thread::sleep_for(1ms);
    cancelled_ = cancelled() ? 1 : 0;
  });
  registry.add("relay", [this](const std::string& to) {
    note([&] { Agent::current().rpc_sync(to, "wait"); });
  });
  registry.add("sevens", [this] { return sevens(); });
  registry.add("are_sevens", [this](const at::Tensor& tensor) {
    const bool whole = are_sevens(tensor);
    if (!whole) ++torn;
    return whole;
  });
  registry.add("make", [] { return std::make_shared<Count>(); });
  registry.add("value", [](const Count& count) { return count.value; });
  registry.add("make_slowly", [this] {
    hit();
    for (const Deadline end = Deadline::seconds(2 * kSlack); !cancelled() && !end.expired();)
      std::this_thread::sleep_for(1ms);
    cancelled_ = cancelled() ? 1 : 0;
    return at::ones({3});
  });
  registry.add("keep", [this](RRef<Count> count) {
    const MutexLock lock(mutex_);
    kept_ = count;
  });
  registry.add("use", [this](RRef<Count> count) {
    count.rpc_sync<int>("value");
    say("b has it");
    await("arrived");  // the sender knows that it has arrived
    hit();
    note([&] { count.rpc_sync<int>("value"); });
    return 0;
  });
  registry.add("forward_b", [this](const at::Tensor& x) { return forward_b(x); });
  registry.add("forward_c", [this](const at::Tensor& x) { return forward_c(x); });
  registry.add("parameter", [this] { return agent_->own(std::make_shared<at::Tensor>(weight_)); });
  add_optimizers(registry, [this](std::vector<at::Tensor> parameters, const OptimizerRecipe&) {
    return std::make_unique<StrikingSgd>(std::move(parameters), [this] {
      if (is(kB)) hit();
    });
  });
  return registry;
}

void Part::join() {
  if (fault_.before && fault_.victim == role_) hit();
  agent_.emplace(init(kNames[role_], store_, functions(),
                      {.timeout = timeout(), .lease = kLease, .world = {"a", "b", "c"}}));
  say(std::string("up/") + kNames[role_]);
  for (int role = 0; role < kRoles; ++role)
    if (!fault_.before || role != fault_.victim) await(std::string("up/") + kNames[role]);
}

// Ends within its deadline, and leaves nothing behind.
void Part::shut_down() {
  await("hit");
  meet("all is seen");
  expect(fault_.all_come ? kWell : kLate, "shutdown.. of rpc: .*'" + std::string(kNames[victim()]),
         [this] { agent_->shutdown(kShort); });
  {
    const MutexLock lock(mutex_);
    kept_ = {};
  }
  agent_.reset();
}

}  // namespace lockstep::inline v0::rpc::faults_mp_test
