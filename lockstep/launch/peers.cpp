#include "lockstep/launch/peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sstream>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {
namespace {

// Agents repeat the report while it is true.
constexpr auto kWaitInVain = std::chrono::seconds(4);

}  // namespace

void Peers::tell(const AgentMessage& message) {
  AgentMessage said = message;
  if (message.kind == AgentMessage::Kind::kEnded) said.port = next_port();
  say(follower_.tell(std::move(said)));
}

void Peers::take(const AgentMessage& message) {
  const Follower::Step step = follower_.on_message(message);
  for (const AgentMessage& answer : step.say) say(answer);
  for (const AgentMessage& heard : step.hear) hear(heard);
}

void Peers::hear(const AgentMessage& message) {
  news_ = true;
  switch (message.kind) {
    case AgentMessage::Kind::kWait:
      waits_ = message.text;
      break;
    case AgentMessage::Kind::kStart: {
      NodePlan plan = message.plan;
      complete(plan);
      plan_ = plan;
      orders_.clear();
      asked_to_stop_ = false;
      break;
    }
    case AgentMessage::Kind::kStop:
      asked_to_stop_ = asked_to_stop_ || message.number != 0;
      orders_.push_back({.asked = message.number != 0});
      break;
    case AgentMessage::Kind::kStopServices:
      orders_.push_back({.well = true});
      break;
    case AgentMessage::Kind::kLeave:
      orders_.push_back({.leave = true});
      break;
    case AgentMessage::Kind::kWaitInVain:
      others_wait_until_ = std::chrono::steady_clock::now() + kWaitInVain;
      break;
    case AgentMessage::Kind::kStoodStill:
      stood_still_elsewhere_ = std::chrono::steady_clock::now();
      break;
    case AgentMessage::Kind::kSignal:
      asked_to_stop_ = asked_to_stop_ || message.number == SIGTERM;
      orders_.push_back({message.number});
      break;
    case AgentMessage::Kind::kOver:
      if (!last_word_) last_word_ = message;
      break;
    default:
      break;
  }
}

bool refuses(const HostPort& address) {
  constexpr std::chrono::milliseconds kProbe(300);
  sockaddr_storage storage{};
  socklen_t size = 0;
  if (auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
      ::inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    size = sizeof *v4;
  } else {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
    if (::inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr) != 1) return false;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    size = sizeof *v6;
  }
  const UniqueFd fd(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return false;
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), size) == 0) return false;
  if (errno == ECONNREFUSED) return true;
  pollfd waiting{fd.get(), POLLOUT, 0};
  if (errno != EINPROGRESS || ::poll(&waiting, 1, static_cast<int>(kProbe.count())) <= 0)
    return false;
  int error = 0;
  socklen_t length = sizeof error;
  ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  return error == ECONNREFUSED;
}

std::string encode_endpoints(const std::string& agent, const std::vector<HostPort>& endpoints) {
  std::string text = agent;
  for (const HostPort& endpoint : endpoints) text += " " + endpoint.to_string();
  return text;
}

std::vector<HostPort> decode_endpoints(const std::string& text) {
  std::vector<HostPort> endpoints;
  std::istringstream words(text);
  std::string word;
  words >> word;  // skips the agent
  try {
    while (words >> word) endpoints.push_back(parse_host_port(word));
  } catch (const InvalidArgument&) {
    throw StoreError("the key of the job's leader has '" + text.substr(0, 80) +
                     "', which no lockstep wrote");
  }
  return endpoints;
}

AgentMessage introduction(const LaunchOptions& options, const Former& former) {
  AgentMessage join;
  join.kind = AgentMessage::Kind::kJoin;
  join.agent = former.agent;
  join.seen = former.seen;
  join.restarts = former.plan.restarts;
  join.ran_with = former.ran_with;
  join.old_ranks_for = std::max(std::chrono::milliseconds(0),
                                std::chrono::ceil<std::chrono::milliseconds>(
                                    former.ranks_until - std::chrono::steady_clock::now()));
  join.job = former.plan.job;
  join.known = former.known;
  join.endpoint = former.endpoint;
  join.run_id = options.run_id;
  join.introduction = {
      .number = -1, .host = "", .address = "", .pid = ::getpid(), .ranks = options.nproc};
  join.nodes = join.min_nodes = 1;
  if (!options.nodes) return join;
  const NodesOptions& nodes = *options.nodes;
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  join.introduction.host = name;
  join.introduction.number = nodes.number.value_or(-1);
  join.nodes = nodes.nodes;
  join.min_nodes = nodes.min_nodes > 0 ? nodes.min_nodes : nodes.nodes;
  return join;
}

std::optional<PeerOrder> Peers::next_order() {
  if (orders_.empty()) return std::nullopt;
  const PeerOrder order = orders_.front();
  orders_.pop_front();
  return order;
}

}  // namespace lockstep::inline v0::launch
