#include "lockstep/cli/run/host_choice.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <system_error>

#include "lockstep/cli/usage.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/named_file.h"

namespace lockstep::inline v0::cli {
namespace {

using launch::HostSlots;

constexpr int kMostGpus = 1024;

// deepspeed's "a:0,2@b": GPUs by host; an empty set: the whole host.
struct Selected {
  std::string host;
  std::set<int> gpus;
};
std::vector<Selected> parse_selection(const std::string& flag, const std::string& text) {
  std::vector<Selected> all;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, '@');) {
    const size_t colon = part.find(':');
    Selected one{.host = part.substr(0, colon), .gpus = {}};
    std::istringstream numbers(colon == std::string::npos ? "" : part.substr(colon + 1));
    for (std::string number; std::getline(numbers, number, ',');) {
      const auto gpu = parse_int(number, 0, kMostGpus - 1);
      if (!gpu) throw UsageError(flag + "=" + text + ": '" + number + "' is no number of a GPU");
      one.gpus.insert(static_cast<int>(*gpu));
    }
    if (one.host.empty() || (colon != std::string::npos && one.gpus.empty()))
      throw UsageError(flag + "=" + text + ": expected HOST:GPU,GPU@HOST, such as a:0,1@b");
    all.push_back(one);
  }
  return all;
}

std::string list_of(const std::set<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

std::set<int> first_gpus(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return {numbers.begin(), numbers.end()};
}

HostChoice named_hosts(const RunFlags& flags) {
  if (!flags.hosts.empty() && !flags.host_file.empty())
    throw UsageError("-H " + flags.hosts + " and --hostfile=" + flags.host_file +
                     " both name the hosts; give one of them");
  std::error_code none;
  if (!flags.hosts.empty() && std::filesystem::is_regular_file(flags.hosts, none))
    throw UsageError("-H " + flags.hosts +
                     " is a file, and -H takes hosts; give --hostfile=" + flags.hosts);
  if (!flags.hosts.empty())
    return {.hosts = launch::parse_hosts(flags.hosts), .source = "-H", .devices = {}};
  if (flags.host_file.empty()) return {};
  std::string text;
  try {
    text = read_named_file(flags.host_file);
  } catch (const InvalidArgument& error) {
    throw UsageError(std::string("--hostfile: ") + error.what());
  }
  return {.hosts = launch::parse_host_file(text, flags.host_file),
          .source = "--hostfile " + flags.host_file,
          .devices = {}};
}

// Keeps the GPUs that are selected (`include`) or the others.
void select(const std::string& flag, const std::string& text, bool include, HostChoice& choice) {
  const std::vector<Selected> selection = parse_selection(flag, text);
  std::map<std::string, std::set<int>> of_host;
  bool single_gpus = false;
  for (const Selected& one : selection) {
    const auto host = std::find_if(choice.hosts.begin(), choice.hosts.end(),
                                   [&](const HostSlots& each) { return each.host == one.host; });
    if (host == choice.hosts.end() && !choice.source.empty())
      throw UsageError(flag + "=" + text + ": " + choice.source + " has no host " + one.host);
    if (choice.source.empty()) {
      if (one.gpus.empty() || !include)
        throw UsageError(
            flag + "=" + text +
            " needs the number of GPUs of each host: give --hostfile or -H HOST:SLOTS");
      if (!of_host.contains(one.host)) choice.hosts.push_back({one.host, 1});
    }
    single_gpus = single_gpus || !one.gpus.empty();
    auto& gpus = of_host[one.host];
    const int slots = choice.source.empty() ? kMostGpus : host->slots;
    if (!one.gpus.empty() && *one.gpus.rbegin() >= slots)
      throw UsageError(flag + "=" + text + ": " + one.host + " has " + std::to_string(slots) +
                       " slots, and GPUs count from 0");
    gpus.merge(one.gpus.empty() ? first_gpus(slots) : std::set<int>(one.gpus));
  }
  std::vector<HostSlots> kept;
  std::set<std::set<int>> devices;
  for (const HostSlots& host : choice.hosts) {
    const auto named = of_host.find(host.host);
    std::set<int> gpus = include ? std::set<int>() : first_gpus(host.slots);
    if (named != of_host.end() && include) gpus = named->second;
    if (named != of_host.end() && !include)
      for (const int gpu : named->second) gpus.erase(gpu);
    if (gpus.empty()) continue;
    kept.push_back({host.host, static_cast<int>(gpus.size())});
    devices.insert(gpus);
  }
  if (kept.empty()) throw UsageError(flag + "=" + text + " leaves no host");
  if (single_gpus && devices.size() > 1)
    throw UsageError(flag + "=" + text +
                     " names different GPUs on different hosts, and all ranks have one "
                     "CUDA_VISIBLE_DEVICES; name the same on each host");
  if (single_gpus) choice.devices = list_of(*devices.begin());
  choice.hosts = std::move(kept);
  if (choice.source.empty()) choice.source = flag + "=" + text;
}

}  // namespace

HostChoice choose_hosts(const RunFlags& flags, std::optional<int> per_host, bool oversubscribe) {
  HostChoice choice = named_hosts(flags);
  if (!flags.include.empty() && !flags.exclude.empty())
    throw UsageError("--include and --exclude contradict each other; give one of them");
  if (!flags.include.empty()) select("--include", flags.include, true, choice);
  if (!flags.exclude.empty()) select("--exclude", flags.exclude, false, choice);
  if (flags.first_hosts && !choice.hosts.empty()) {
    const auto first = static_cast<size_t>(std::max(0, *flags.first_hosts));
    if (first < 1 || first > choice.hosts.size())
      throw UsageError("--num-nodes=" + std::to_string(*flags.first_hosts) + ": " + choice.source +
                       " has " + std::to_string(choice.hosts.size()) + " hosts");
    choice.hosts.resize(first);
  }
  for (HostSlots& host : choice.hosts) {
    if (!per_host) continue;
    // One slot is also what a host without a number has.
    if (host.slots > 1 && *per_host > host.slots && !oversubscribe)
      throw UsageError(std::to_string(*per_host) + " ranks on each host do not fit " + host.host +
                       ", which has " + std::to_string(host.slots) +
                       " slots; give it more, or give --oversubscribe");
    host.slots = *per_host;
  }
  return choice;
}

}  // namespace lockstep::inline v0::cli
