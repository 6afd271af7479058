#include "lockstep/launch/agent_message.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/errors.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;
using Kind = AgentMessage::Kind;

// Agents of different versions report the difference instead of misunderstanding each other.
constexpr int kProtocol = 7;

constexpr std::array<std::pair<Kind, const char*>, 17> kNames = {{
    {Kind::kJoin, "join"},
    {Kind::kRefused, "refused"},
    {Kind::kWait, "wait"},
    {Kind::kPlan, "plan"},
    {Kind::kReady, "ready"},
    {Kind::kStart, "start"},
    {Kind::kFailed, "failed"},
    {Kind::kSignal, "signal"},
    {Kind::kStop, "stop"},
    {Kind::kServed, "served"},
    {Kind::kStopServices, "stop services"},
    {Kind::kLeave, "leave"},
    {Kind::kWaitInVain, "wait in vain"},
    {Kind::kStoodStill, "stood still"},
    {Kind::kEnded, "ended"},
    {Kind::kOver, "over"},
    {Kind::kBeat, "beat"},
}};

// A rank's output may not be UTF-8: such bytes are replaced.
std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

json to_json(const NodeIntroduction& node) {
  return {{"number", node.number},
          {"host", node.host},
          {"address", node.address},
          {"pid", node.pid},
          {"ranks", node.ranks}};
}

NodeIntroduction introduction_of(const json& value) {
  return {value.at("number"), value.at("host"), value.at("address"), value.at("pid"),
          value.at("ranks")};
}

json to_json(const HostPort& address) {
  return {{"host", address.host}, {"port", address.port}};
}

HostPort host_port_of(const json& value) {
  return {value.at("host"), value.at("port")};
}

json to_json(const NodePlan& plan) {
  return {{"node_rank", plan.node_rank},   {"nodes", plan.nodes},
          {"first_rank", plan.first_rank}, {"local_ranks", plan.local_ranks},
          {"world_size", plan.world_size}, {"master", to_json(plan.master)},
          {"store", to_json(plan.store)},  {"generation", plan.generation},
          {"restarts", plan.restarts},     {"job", plan.job}};
}

NodePlan plan_of(const json& value) {
  NodePlan plan;
  plan.node_rank = value.at("node_rank");
  plan.nodes = value.at("nodes");
  plan.first_rank = value.at("first_rank");
  plan.local_ranks = value.at("local_ranks");
  plan.world_size = value.at("world_size");
  plan.master = host_port_of(value.at("master"));
  plan.store = host_port_of(value.at("store"));
  plan.generation = value.at("generation");
  plan.restarts = value.at("restarts");
  plan.job = value.at("job");
  return plan;
}

json to_json(const std::vector<Formation>& formations) {
  json list = json::array();
  for (const Formation& formation : formations)
    list.push_back({{"generation", formation.generation},
                    {"begun", formation.begun},
                    {"by", formation.by},
                    {"agents", formation.agents}});
  return list;
}

std::vector<Formation> formations_of(const json& list) {
  std::vector<Formation> formations;
  for (const json& value : list)
    formations.push_back({value.at("generation"), value.at("begun"), value.at("by"),
                          value.at("agents").get<std::vector<std::string>>()});
  return formations;
}

json to_json(const RankSight& sight) {
  return {{"host", sight.host},
          {"rank", sight.rank},
          {"pid", sight.pid},
          {"stopped_by", sight.stopped_by},
          {"end", sight.end},
          {"ended_badly", sight.ended_badly},
          {"last_collective", sight.last_collective},
          {"gave_up", sight.gave_up},
          {"late", sight.late}};
}

RankSight sight_of(const json& value) {
  RankSight sight;
  sight.host = value.at("host");
  sight.rank = value.at("rank");
  sight.pid = value.at("pid");
  sight.stopped_by = value.at("stopped_by");
  sight.end = value.at("end");
  sight.ended_badly = value.at("ended_badly");
  sight.last_collective = value.at("last_collective");
  sight.gave_up = value.at("gave_up");
  sight.late = value.at("late");
  return sight;
}

json to_json(const std::vector<RankSight>& sights) {
  json list = json::array();
  for (const RankSight& sight : sights) list.push_back(to_json(sight));
  return list;
}

std::vector<RankSight> sights_of(const json& list) {
  std::vector<RankSight> sights;
  for (const json& value : list) sights.push_back(sight_of(value));
  return sights;
}

// The record of the last call is sent as the text in the report: agents need not share its layout.
json to_json(const WorkerFailure& failure) {
  return {{"host", failure.host},
          {"rank", failure.rank},
          {"role", failure.role},
          {"restarts", failure.restarts},
          {"local_rank", failure.local_rank},
          {"pid", failure.pid},
          {"exit_code", failure.exit_code},
          {"signal", failure.signal},
          {"last_collective", failure.last_collective},
          {"message", failure.message},
          {"complete", failure.complete},
          {"tail", failure.tail},
          {"tail_stream", failure.tail_stream},
          {"gave_up", failure.gave_up},
          {"late", failure.late},
          {"causes", to_json(failure.causes)},
          {"waited", failure.waited}};
}

WorkerFailure failure_of(const json& value) {
  WorkerFailure failure;
  failure.host = value.at("host");
  failure.rank = value.at("rank");
  failure.role = value.at("role");
  failure.restarts = value.at("restarts");
  failure.local_rank = value.at("local_rank");
  failure.pid = value.at("pid");
  failure.exit_code = value.at("exit_code");
  failure.signal = value.at("signal");
  failure.last_collective = value.at("last_collective");
  failure.message = value.at("message");
  failure.complete = value.at("complete");
  failure.tail = value.at("tail").get<std::vector<std::string>>();
  failure.tail_stream = value.at("tail_stream");
  failure.gave_up = value.at("gave_up");
  failure.late = value.at("late");
  failure.causes = sights_of(value.at("causes"));
  failure.waited = value.at("waited").get<std::vector<int>>();
  return failure;
}

}  // namespace

std::vector<Formation> newest_formations(std::vector<Formation> known,
                                         const std::vector<Formation>& more) {
  for (const Formation& formation : more) {
    const auto same = std::find_if(known.begin(), known.end(), [&](const Formation& other) {
      return other.generation == formation.generation && other.by == formation.by;
    });
    if (same == known.end()) {
      known.push_back(formation);
    } else {
      same->begun = same->begun || formation.begun;
    }
  }
  int newest = -1;
  for (const Formation& formation : known) {
    if (formation.begun) newest = std::max(newest, formation.generation);
  }
  std::erase_if(known, [&](const Formation& formation) {
    return formation.generation < newest || (formation.generation == newest && !formation.begun);
  });
  return known;
}

std::string encode(const AgentMessage& message) {
  json value;
  for (const auto& [kind, name] : kNames) {
    if (kind == message.kind) value["kind"] = name;
  }
  switch (message.kind) {
    case Kind::kJoin:
      value["protocol"] = kProtocol;
      value["agent"] = message.agent;
      value["introduction"] = to_json(message.introduction);
      value["nodes"] = message.nodes;
      value["min_nodes"] = message.min_nodes;
      value["run_id"] = message.run_id;
      value["port"] = message.port;
      value["seen"] = message.seen;
      value["restarts"] = message.restarts;
      value["job"] = message.job;
      break;
    case Kind::kPlan:
      value["plan"] = to_json(message.plan);
      break;
    case Kind::kRefused:
    case Kind::kWait:
    case Kind::kStart:
    case Kind::kLeave:
      value["text"] = message.text;
      break;
    case Kind::kStop:
      value["text"] = message.text;
      value["number"] = message.number;
      break;
    case Kind::kFailed:
      value["stood_still"] = message.stood_still;
      [[fallthrough]];
    case Kind::kOver:
      value["text"] = message.text;
      value["exit_code"] = message.exit_code;
      break;
    case Kind::kSignal:
      value["number"] = message.number;
      break;
    case Kind::kEnded:
      value["sights"] = to_json(message.sights);
      value["port"] = message.port;
      value["finished"] = message.finished;
      value["well"] = message.well;
      value["lost_output"] = message.lost_output;
      break;
    case Kind::kReady:
    case Kind::kServed:
    case Kind::kWaitInVain:
    case Kind::kStopServices:
    case Kind::kStoodStill:
    case Kind::kBeat:
      break;
  }
  if (message.endpoint >= 0) value["endpoint"] = message.endpoint;
  if (!message.known.empty()) value["known"] = to_json(message.known);
  if (message.generation >= 0) value["generation"] = message.generation;
  if (message.failure) value["failure"] = to_json(*message.failure);
  return dump(value);
}

AgentMessage decode_agent_message(std::string_view body) {
  try {
    const json value = json::parse(body);
    AgentMessage message;
    const std::string name = value.at("kind");
    bool known = false;
    for (const auto& [kind, text] : kNames) {
      if (name != text) continue;
      message.kind = kind;
      known = true;
    }
    if (!known) throw StoreError("an agent said '" + name + "', which this version does not know");
    if (message.kind == Kind::kJoin && value.at("protocol") != kProtocol) {
      throw StoreError("an agent speaks another version; every host needs the same lockstep");
    }
    if (value.contains("introduction"))
      message.introduction = introduction_of(value["introduction"]);
    if (value.contains("plan")) message.plan = plan_of(value["plan"]);
    if (value.contains("failure")) message.failure = failure_of(value["failure"]);
    if (value.contains("sights")) message.sights = sights_of(value["sights"]);
    message.generation = value.value("generation", -1);
    message.agent = value.value("agent", "");
    message.endpoint = value.value("endpoint", -1);
    if (value.contains("known")) message.known = formations_of(value["known"]);
    message.nodes = value.value("nodes", 0);
    message.min_nodes = value.value("min_nodes", 0);
    message.seen = value.value("seen", -1);
    message.restarts = value.value("restarts", 0);
    message.finished = value.value("finished", false);
    message.well = value.value("well", false);
    message.stood_still = value.value("stood_still", false);
    message.lost_output = value.value("lost_output", false);
    message.job = value.value("job", "");
    message.run_id = value.value("run_id", "");
    message.port = value.value("port", uint16_t{0});
    message.number = value.value("number", 0);
    message.exit_code = value.value("exit_code", 0);
    message.text = value.value("text", "");
    return message;
  } catch (const json::exception& error) {
    throw StoreError(std::string("an agent's message makes no sense: ") + error.what());
  }
}

}  // namespace lockstep::launch
