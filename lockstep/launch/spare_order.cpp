#include "lockstep/launch/spare_order.h"

#include <climits>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::launch {
namespace {

// Separates the processors and the variables.
constexpr char kEnd = '\0';

InvalidArgument makes_no_sense() {
  return InvalidArgument(
      "what came on LOCKSTEP_SPARE_FD is no order of lockstep run; unset the variable, which only "
      "lockstep run sets");
}

std::vector<int> cpus_of(std::string_view text) {
  std::vector<int> cpus;
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const auto cpu = parse_int(text.substr(at, comma - at), 0, INT_MAX);
    if (!cpu) throw makes_no_sense();
    cpus.push_back(static_cast<int>(*cpu));
    at = comma + 1;
  }
  return cpus;
}

}  // namespace

std::string encode(const SpareOrder& order) {
  std::string message;
  for (const int cpu : order.cpus) message += (message.empty() ? "" : ",") + std::to_string(cpu);
  message += kEnd;
  for (const auto& [name, value] : order.variables) {
    message += name;
    message += '=';
    message += value;
    message += kEnd;
  }
  return message;
}

SpareOrder decode_spare_order(std::string_view message) {
  if (message.empty() || message.back() != kEnd) throw makes_no_sense();
  SpareOrder order;
  size_t at = message.find(kEnd) + 1;
  order.cpus = cpus_of(message.substr(0, at - 1));
  while (at < message.size()) {
    const size_t end = message.find(kEnd, at);
    const std::string_view line = message.substr(at, end - at);
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos || equals == 0) throw makes_no_sense();
    order.variables[std::string(line.substr(0, equals))] = line.substr(equals + 1);
    at = end + 1;
  }
  return order;
}

}  // namespace lockstep::inline v0::launch
