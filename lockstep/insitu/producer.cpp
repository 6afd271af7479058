#include <cstring>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/stream_copy.h"
#include "lockstep/insitu/ring.h"
#include "lockstep/insitu/ring_member.h"

namespace lockstep::inline v0::insitu {
namespace {

// From here on a sample does not stay in the caches until a consumer reads it.
constexpr size_t kStreamed = size_t{1} << 20;

Geometry asked_geometry(const Schema& schema, const ProducerOptions& options) {
  if (schema.empty()) throw InvalidArgument("insitu: a producer needs a schema");
  if (options.slots < 1 || options.slots > static_cast<int>(kMaxSlots))
    throw InvalidArgument("insitu: " + std::to_string(options.slots) + " slots; 1 to " +
                          std::to_string(kMaxSlots) + " are possible");
  if (options.producers < 1)
    throw InvalidArgument("insitu: " + std::to_string(options.producers) +
                          " producers; at least one is needed");
  if (static_cast<uint32_t>(options.on_full) > static_cast<uint32_t>(OnFull::kDropOldest))
    throw InvalidArgument("insitu: there is no policy " +
                          std::to_string(static_cast<uint32_t>(options.on_full)));
  return {schema, static_cast<uint32_t>(options.slots), static_cast<uint32_t>(options.producers)};
}

}  // namespace

Slot::Slot(std::shared_ptr<RingMember> member, uint32_t index)
    : member_(std::move(member)), index_(index) {}
Slot::Slot(Slot&& other) noexcept = default;
Slot& Slot::operator=(Slot&& other) noexcept {
  if (this != &other) {
    give_back();
    member_ = std::move(other.member_);
    index_ = other.index_;
  }
  return *this;
}
Slot::~Slot() {
  give_back();
}

void Slot::give_back() noexcept {
  if (member_) member_->memory.abandon(index_);
  member_.reset();
}

void* Slot::data(size_t field) {
  if (!member_) throw InvalidArgument("insitu: the slot was committed");
  const Schema& schema = member_->memory.geometry().schema;
  if (field >= schema.size())
    throw InvalidArgument("insitu: there is no field " + std::to_string(field) +
                          "; the sample has: " + schema.to_string());
  return member_->memory.slot(index_) + schema.offset(field);
}

void Slot::write(size_t field, const void* array) {
  void* const to = data(field);
  const size_t bytes = member_->memory.geometry().schema[field].bytes();
  if (bytes >= kStreamed) {
    stream_copy(to, array, bytes);
    stream_fence();
  } else {
    std::memcpy(to, array, bytes);
  }
}

void Slot::commit() {
  if (!member_) throw InvalidArgument("insitu: the slot was committed");
  member_->memory.commit(index_);
  member_.reset();
}

Producer::Producer(std::shared_ptr<RingMember> member, OnFull on_full)
    : member_(std::move(member)), on_full_(on_full) {}
Producer::Producer(Producer&&) noexcept = default;
Producer& Producer::operator=(Producer&&) noexcept = default;
Producer::~Producer() = default;

Producer Producer::open(const std::string& name, const Schema& schema,
                        const ProducerOptions& options, Deadline deadline) {
  Meeting meeting = meet(name, asked_geometry(schema, options), deadline);
  expect_schema(name, meeting.memory.get(), schema);
  return Producer(std::make_shared<RingMember>(std::move(meeting), /*producer=*/true),
                  options.on_full);
}

const Schema& Producer::schema() const {
  return member_->memory.geometry().schema;
}

std::optional<Slot> Producer::begin(Deadline deadline) {
  RingMemory& ring = member_->memory;
  if (ring.closed()) throw InvalidArgument("insitu: this producer was closed");
  std::optional<RingMemory::Claim> claim = ring.claim(on_full_ == OnFull::kDropOldest);
  // A full ring may hold slots of the dead.
  if (!claim || claim->overwrites) ring.sweep_now_and_then();
  if (!claim && on_full_ == OnFull::kWait) {
    ring.wait_for(ring.header().space, deadline,
                  [&] { return (claim = ring.claim(false)).has_value(); });
  } else if (!claim) {
    claim = ring.claim(on_full_ == OnFull::kDropOldest);
  }
  if (!claim || claim->overwrites) ring.count_dropped();
  if (!claim) return std::nullopt;
  return Slot(member_, claim->slot);
}

bool Producer::push(const std::vector<const void*>& arrays, Deadline deadline) {
  if (arrays.size() != schema().size())
    throw InvalidArgument("insitu: " + std::to_string(arrays.size()) +
                          " arrays; the sample has: " + schema().to_string());
  std::optional<Slot> slot = begin(deadline);
  if (!slot) return false;
  for (size_t i = 0; i < arrays.size(); ++i) slot->write(i, arrays[i]);
  slot->commit();
  return true;
}

bool Producer::close(Deadline drain) {
  RingMemory& ring = member_->memory;
  ring.close();
  return ring.wait_for(ring.header().space, drain, [&] {
    const RingMemory::Held held = ring.held();
    return held.full == 0 && held.reading == 0;
  });
}

RingStats Producer::stats() const {
  return member_->memory.stats();
}

}  // namespace lockstep::inline v0::insitu
