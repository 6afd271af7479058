#include "lockstep/launch/agent_message.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/launch/internal/message_json.h"

namespace lockstep::inline v0::launch {
namespace {

using nlohmann::json;
using Kind = AgentMessage::Kind;

// Agents of different versions report the difference instead of misunderstanding each other.
constexpr int kProtocol = 10;

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
  static const json kDefault = AgentMessage{};
  json value = json::object();
  const json all = message;
  for (const auto& [name, member] : all.items()) {
    if (member != kDefault[name]) value[name] = member;
  }
  for (const auto& [kind, name] : kNames) {
    if (kind == message.kind) value["kind"] = name;
  }
  if (message.kind == Kind::kJoin) value["protocol"] = kProtocol;
  // A rank's output may not be UTF-8: such bytes are replaced.
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

AgentMessage decode_agent_message(std::string_view body) {
  try {
    const json value = json::parse(body);
    const std::string name = value.at("kind");
    const auto* const known = std::find_if(kNames.begin(), kNames.end(),
                                           [&](const auto& entry) { return name == entry.second; });
    if (known == kNames.end())
      throw StoreError("an agent said '" + name + "', which this version does not know");
    if (known->first == Kind::kJoin && value.at("protocol") != kProtocol)
      throw StoreError("an agent speaks another version; every host needs the same lockstep");
    json all = AgentMessage{};  // a member that is missing has its default
    all.update(value);
    auto message = all.get<AgentMessage>();
    message.kind = known->first;
    return message;
  } catch (const json::exception& error) {
    throw StoreError(std::string("an agent's message makes no sense: ") + error.what());
  }
}

}  // namespace lockstep::inline v0::launch
