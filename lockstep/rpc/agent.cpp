#include "lockstep/rpc/agent.h"

#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/comm/groups/bootstrap.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/rpc/internal/core.h"
#include "lockstep/rpc/internal/devices.h"
#include "lockstep/store/prefix_store.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::inline v0::rpc {
namespace internal {

Writer& scratch_writer(const std::shared_ptr<Core>& core) {
  return scratch_writer(&core->references());
}
void start_call(const std::shared_ptr<Core>& core, const std::string& to, const Request& request,
                Writer& arguments, const PendingPtr& call, const ReferencePtr& owned) {
  core->calls().call(to, request, arguments, call, {.owner = owned ? &owned->owner : nullptr});
}
ReferencePtr start_remote(const std::shared_ptr<Core>& core, const std::string& to,
                          const Request& request, Writer& arguments, const ReferencePtr& owned) {
  return core->references().remote(to, request, arguments, owned ? &owned->owner : nullptr);
}
ReferencePtr own_object(const std::shared_ptr<Core>& core, std::shared_ptr<Object> object) {
  return core->references().own(std::move(object));
}

}  // namespace internal

Agent Agent::current() {
  const auto& core = internal::this_context().core;
  if (!core)
    throw InvalidArgument(
        "rpc::Agent::current() is for functions that serve a call; this thread serves none");
  return Agent(core);
}

const std::string& Agent::name() const {
  return core_->options().name;
}
const std::vector<std::string>& Agent::world() const {
  return core_->options().world;
}

void Agent::shutdown(std::chrono::nanoseconds timeout) {
  if (core_->stopped()) return stop();
  if (core_->reactor().is_own_thread())
    throw InvalidArgument(
        "shutdown() of rpc from a function that is being served would wait for itself");
  const Deadline deadline = Deadline::after(timeout);
  const auto end = [&] {
    core_->stop("the agent was shut down",
                Deadline::seconds(std::max(0.5, std::min(5.0, timeout.count() / 1e9))));
  };
  try {
    if (!core_->calls().wait_idle(deadline))
      throw Timeout("shutdown() of rpc: calls of '" + name() + "' are pending after " +
                    std::to_string(deadline.timeout_seconds()) + " s");
    core_->meet_all(deadline);
  } catch (...) {
    end();
    throw;
  }
  // The other processes ask the store until they have ended, so the process that serves it ends
  // last.
  if (core_->serves_store())
    core_->wait_left(Deadline::after(
        std::min<Deadline::Duration>(deadline.remaining(), std::chrono::seconds(5))));
  end();
  if (!core_->serves_store()) core_->say_left();
}

void Agent::stop() {
  core_->stop("the agent was stopped", Deadline::seconds(5));
}

std::vector<PendingCall> Agent::pending_calls() const {
  return core_->pending_calls();
}
size_t Agent::kept_objects() const {
  return core_->references().objects().size();
}
size_t Agent::held_references() const {
  return core_->references().held();
}

namespace {

// A rank's description for the others: "name", "node", "functions" with their types. A function
// that two ranks know by one name but with different types would otherwise be found only when it is
// called.
void check_types(const std::vector<nlohmann::json>& ranks) {
  std::map<std::string, std::pair<std::string, std::string>> known;  // each type with its process
  for (const nlohmann::json& rank : ranks) {
    const auto name = rank.at("name").get<std::string>();
    for (const auto& [function, types] :
         rank.at("functions").get<std::map<std::string, std::string>>()) {
      const auto [at, fresh] = known.try_emplace(function, types, name);
      if (fresh || at->second.first == types) continue;
      throw InvalidArgument("rpc::init(): the function '" + function + "' is " + at->second.first +
                            " on '" + at->second.second + "' but " + types + " on '" + name +
                            "'; register it with the same types, or by another name");
    }
  }
}

// Also describes a device whose number is out of range, such as at::Device("cuda:200").
nlohmann::json words_of(c10::Device device) {
  return {{"type", static_cast<int>(device.type())}, {"index", static_cast<int>(device.index())}};
}
c10::Device device_of(const nlohmann::json& words) {
  return {static_cast<c10::DeviceType>(words.at("type").get<int>()),
          static_cast<c10::DeviceIndex>(words.at("index").get<int>())};
}

// Checks that the maps are valid, and lead to existing names and from devices to existing devices,
// and that each name belongs to one rank.
void check_devices(const std::vector<nlohmann::json>& ranks) {
  std::map<std::string, nlohmann::json> ranks_by_name;
  for (const nlohmann::json& rank : ranks) ranks_by_name[rank.at("name").get<std::string>()] = rank;
  const auto seen = [&](const std::string& name, c10::Device device) {
    const nlohmann::json& rank = ranks_by_name.at(name);
    return rank.at("kind") == c10::DeviceTypeName(device.type(), true)
               ? rank.at("devices").get<int>()
               : 0;
  };
  const auto refuse = [](const std::string& name, const std::string& peer,
                         const std::string& what) {
    throw InvalidArgument("rpc::init(): the device map of '" + name + "' for '" + peer + "' " +
                          what);
  };
  for (const nlohmann::json& rank : ranks) {
    const auto name = rank.at("name").get<std::string>();
    for (const auto& [peer, pairs] : rank.at("maps").items()) {
      if (!ranks_by_name.contains(peer)) refuse(name, peer, "has no taker: no rank has that name");
      DeviceMap map;
      for (const auto& pair : pairs) map.emplace_back(device_of(pair.at(0)), device_of(pair.at(1)));
      try {
        internal::check_map(peer, map);
      } catch (const InvalidArgument& error) {
        throw InvalidArgument("rpc::init(): of '" + name + "', " + error.what());
      }
      for (const auto& [here, there] : map) {
        const int own = seen(name, here), others = seen(peer, there);
        if (here.index() >= own)
          refuse(name, peer,
                 "sends from device " + here.str() + ", but there are " + std::to_string(own) +
                     " of that kind");
        if (there.index() >= others)
          refuse(name, peer,
                 "sends to device " + there.str() + ", but there are " + std::to_string(others) +
                     " of that kind");
      }
    }
  }
}

// The state that the handles of an agent share. The last handle stops the agent on its own thread,
// though calls that are being served keep the core longer. Otherwise the end would come in one of
// its workers, which would wait for itself, and the process might end meanwhile.
std::shared_ptr<internal::Core> handle_of(std::shared_ptr<internal::Core> core) {
  struct Owner {
    explicit Owner(std::shared_ptr<internal::Core> core) : core(std::move(core)) {}
    ~Owner() { core->stop("its agent was destroyed", Deadline::seconds(5)); }
    Owner(const Owner&) = delete;
    Owner& operator=(const Owner&) = delete;
    const std::shared_ptr<internal::Core> core;
  };
  const auto owner = std::make_shared<Owner>(std::move(core));
  return {owner, owner->core.get()};
}

}  // namespace

Agent init(const std::string& name, std::shared_ptr<Store> store, Registry registry,
           AgentOptions options) {
  if (!store) throw InvalidArgument("rpc::init() needs a store by which the others are found");
  options.name = name;
  std::optional<Secret> secret = options.secret;
  if (!secret) secret = Secret::from_env(process_env());
  if (!secret)
    throw InvalidArgument(
        "rpc::init() needs the job's secret: AgentOptions::secret, or LOCKSTEP_SECRET_FILE in the "
        "environment");
  auto core = handle_of(std::make_shared<internal::Core>(std::move(registry), std::move(store),
                                                         *secret, std::move(options)));
  core->start();
  return Agent(std::move(core));
}

Agent init(Communicator& comm, Registry registry, AgentOptions options) {
  const Deadline deadline = Deadline::after(options.timeout);
  if (options.name.empty()) options.name = "worker" + std::to_string(comm.rank());
  const auto accelerator = at::getAccelerator();
  nlohmann::json mine{{"name", options.name},
                      {"node", comm.node_rank()},
                      {"functions", registry.list()},
                      {"maps", nlohmann::json::object()},
                      {"kind", accelerator ? c10::DeviceTypeName(*accelerator, true) : ""},
                      {"devices", internal::visible_devices()}};
  for (const auto& [peer, map] : options.device_maps) {
    nlohmann::json& pairs = mine["maps"][peer] = nlohmann::json::array();
    for (const auto& [here, there] : map) pairs.push_back({words_of(here), words_of(there)});
  }
  const std::vector<nlohmann::json> ranks = all_gather_object(comm, mine);
  check_types(ranks);
  std::vector<std::string> names;
  bool one_host = true;
  for (const nlohmann::json& one : ranks) {
    names.push_back(one.at("name").get<std::string>());
    one_host = one_host && one.at("node") == comm.node_rank();
  }
  for (size_t i = 0; i < names.size(); ++i)
    if (std::count(names.begin(), names.end(), names[i]) > 1)
      throw InvalidArgument("rpc::init(): several ranks have the name '" + names[i] + "'");
  check_devices(ranks);
  options.world = names;

  const std::string interface = process_env()("LOCKSTEP_INTERFACE").value_or("");
  Rendezvous rendezvous;
  nlohmann::json where;
  if (comm.rank() == 0) {
    const Offer offer = make_offer(interface_addresses(), interface, one_host);
    const Secret secret = options.secret ? *options.secret : Secret::generate();
    const auto server = std::make_shared<TcpStoreServer>(HostPort{offer.listen, 0}, secret);
    rendezvous.keep = server;
    std::vector<std::string> addresses;
    for (const std::string& host : offer.addresses)
      addresses.push_back(HostPort{host, server->address().port}.to_string());
    where = {{"secret", secret.text()}, {"addresses", addresses}};
  }
  where = broadcast_object(comm, where, 0);
  options.secret = Secret::from_text(where.at("secret").get<std::string>());
  std::vector<HostPort> addresses;
  for (const auto& address : where.at("addresses"))
    addresses.push_back(parse_host_port(address.get<std::string>()));
  rendezvous.store =
      std::make_shared<PrefixStore>("rpc", reach_store(addresses, *options.secret, deadline));
  if (!one_host && options.listen == "127.0.0.1")
    options.listen = candidate_addresses(interface_addresses(), interface).at(0);
  const bool serves = rendezvous.keep != nullptr;
  const std::string name = options.name;
  Agent agent =
      init(name, kept_store(std::move(rendezvous)), std::move(registry), std::move(options));
  if (serves) agent.core()->serve_store();
  comm.barrier();  // every agent can be called
  return agent;
}

bool cancelled() {
  const internal::CallContext& context = internal::this_context();
  return context.cancelled && (context.cancelled->load(std::memory_order_acquire) ||
                               (context.deadline && context.deadline->expired()));
}
std::string caller() {
  const auto& from = internal::this_context().from;
  return from ? from->peer().name : "";
}
std::optional<Deadline> call_deadline() {
  return internal::this_context().deadline;
}

}  // namespace lockstep::inline v0::rpc
