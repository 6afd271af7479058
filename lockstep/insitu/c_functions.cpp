#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/insitu/lockstep_insitu.h"
#include "lockstep/insitu/ring.h"

struct lockstep_insitu_producer {
  lockstep::insitu::Producer ring;
  std::optional<lockstep::insitu::Slot> slot = {};
};

struct lockstep_insitu_consumer {
  lockstep::insitu::Consumer ring;
  lockstep::insitu::Batch batch = {};
};

namespace {

namespace insitu = lockstep::insitu;
using lockstep::Deadline;
using lockstep::InvalidArgument;

static_assert(LOCKSTEP_INSITU_MAX_DIMS == insitu::Schema::kMaxDims);
static_assert(LOCKSTEP_INSITU_MAX_FIELDS == insitu::Schema::kMaxFields);
static_assert(LOCKSTEP_INSITU_FLOAT32 == static_cast<int>(insitu::DType::kFloat32));
static_assert(LOCKSTEP_INSITU_BOOL == static_cast<int>(insitu::DType::kBool));
static_assert(LOCKSTEP_INSITU_DROP_OLDEST == static_cast<int>(insitu::OnFull::kDropOldest));

void write_error(char* error, size_t size, const char* text) {
  if (error == nullptr || size == 0) return;
  const size_t length = std::min(std::strlen(text), size - 1);
  std::memcpy(error, text, length);
  error[length] = '\0';
}

// Runs `body`; an exception becomes a number and a text.
template <typename Body>
int guarded(char* error, size_t size, const Body& body) {
  const auto failed = [&](int status, const char* text) {
    write_error(error, size, text);
    return status;
  };
  try {
    body();
    return LOCKSTEP_INSITU_OK;
  } catch (const InvalidArgument& e) {
    return failed(LOCKSTEP_INSITU_INVALID_ARGUMENT, e.what());
  } catch (const lockstep::Timeout& e) {
    return failed(LOCKSTEP_INSITU_TIMEOUT, e.what());
  } catch (const lockstep::Mismatch& e) {
    return failed(LOCKSTEP_INSITU_MISMATCH, e.what());
  } catch (const lockstep::DataError& e) {
    return failed(LOCKSTEP_INSITU_DATA_ERROR, e.what());
  } catch (const lockstep::SystemError& e) {
    return failed(LOCKSTEP_INSITU_SYSTEM_ERROR, e.what());
  } catch (const std::bad_alloc&) {
    return failed(LOCKSTEP_INSITU_OUT_OF_MEMORY, "insitu: not enough memory");
  } catch (const std::exception& e) {
    return failed(LOCKSTEP_INSITU_INTERNAL_ERROR, e.what());
  } catch (...) {
    return failed(LOCKSTEP_INSITU_INTERNAL_ERROR, "insitu: an unknown error");
  }
}

void require(bool there, const char* what) {
  if (!there) throw InvalidArgument(std::string("insitu: ") + what + " is NULL");
}

insitu::Schema schema_from(const lockstep_insitu_field* fields, int32_t count) {
  require(fields != nullptr, "fields");
  if (count < 1 || count > LOCKSTEP_INSITU_MAX_FIELDS)
    throw InvalidArgument("insitu: " + std::to_string(count) + " fields; 1 to " +
                          std::to_string(LOCKSTEP_INSITU_MAX_FIELDS) + " are possible");
  std::vector<insitu::Field> made;
  for (int32_t i = 0; i < count; ++i) {
    const lockstep_insitu_field& field = fields[i];
    require(field.name != nullptr, "a field's name");
    if (field.ndim < 0 || field.ndim > LOCKSTEP_INSITU_MAX_DIMS)
      throw InvalidArgument("insitu: " + std::to_string(field.ndim) + " dims in the field '" +
                            field.name + "'; 0 to 8 are possible");
    made.push_back({field.name, static_cast<insitu::DType>(field.dtype),
                    std::vector<int64_t>(field.shape, field.shape + field.ndim)});
  }
  return insitu::Schema(std::move(made));
}

insitu::ProducerOptions options_from(const lockstep_insitu_options* options) {
  if (options == nullptr) return {};
  // The size of the first version: a program that was compiled for it goes on to work when fields
  // are added.
  constexpr size_t kFirst =
      offsetof(lockstep_insitu_options, producers) + sizeof(lockstep_insitu_options::producers);
  if (options->size < kFirst)
    throw InvalidArgument("insitu: begin the options with LOCKSTEP_INSITU_OPTIONS");
  return {.slots = options->slots,
          .on_full = static_cast<insitu::OnFull>(options->on_full),
          .producers = options->producers};
}

void check_count(const insitu::Schema& schema, int32_t count) {
  if (count < 0 || static_cast<size_t>(count) != schema.size())
    throw InvalidArgument("insitu: " + std::to_string(count) +
                          " arrays; the sample has: " + schema.to_string());
}

void fill_stats(const insitu::RingStats& stats, lockstep_insitu_stats& out) {
  out = {stats.produced, stats.dropped, stats.consumed, stats.abandoned, stats.redelivered,
         stats.slots,    stats.full,    stats.writing,  stats.reading,   0};
  for (const insitu::MemberStats& row : stats.members)
    out.waited_seconds += row.producer ? row.waited_seconds : 0;
}

}  // namespace

extern "C" {

int lockstep_insitu_produce(const char* name, const lockstep_insitu_field* fields, int32_t count,
                            const lockstep_insitu_options* options, double timeout,
                            lockstep_insitu_producer** out, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    require(name != nullptr, "the name");
    require(out != nullptr, "out");
    *out = new lockstep_insitu_producer{insitu::Producer::open(
        name, schema_from(fields, count), options_from(options), Deadline::seconds(timeout))};
  });
}

int lockstep_insitu_push(lockstep_insitu_producer* ring, const void* const* arrays, int32_t count,
                         double timeout, int32_t* placed, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    require(ring != nullptr, "the ring");
    require(arrays != nullptr, "arrays");
    check_count(ring->ring.schema(), count);
    const std::vector<const void*> all(arrays, arrays + count);
    for (const void* array : all) require(array != nullptr, "an array");
    const bool done = ring->ring.push(all, Deadline::seconds(timeout));
    if (placed != nullptr) *placed = done ? 1 : 0;
  });
}

int lockstep_insitu_begin(lockstep_insitu_producer* ring, void** arrays, int32_t count,
                          double timeout, int32_t* placed, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    require(ring != nullptr, "the ring");
    require(arrays != nullptr, "arrays");
    require(placed != nullptr, "placed");
    check_count(ring->ring.schema(), count);
    if (ring->slot)
      throw InvalidArgument("insitu: a sample was begun and neither committed nor abandoned");
    ring->slot = ring->ring.begin(Deadline::seconds(timeout));
    *placed = ring->slot ? 1 : 0;
    for (int32_t i = 0; ring->slot && i < count; ++i)
      arrays[i] = ring->slot->data(static_cast<size_t>(i));
  });
}

int lockstep_insitu_commit(lockstep_insitu_producer* ring, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    require(ring != nullptr, "the ring");
    if (!ring->slot) throw InvalidArgument("insitu: no sample was begun");
    ring->slot->commit();
    ring->slot.reset();
  });
}

void lockstep_insitu_abandon(lockstep_insitu_producer* ring) {
  if (ring != nullptr) ring->slot.reset();
}

int lockstep_insitu_close(lockstep_insitu_producer* ring, double timeout, int32_t* drained,
                          char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    require(ring != nullptr, "the ring");
    ring->slot.reset();
    const bool all = ring->ring.close(Deadline::seconds(timeout));
    if (drained != nullptr) *drained = all ? 1 : 0;
  });
}

int lockstep_insitu_producer_stats(const lockstep_insitu_producer* ring, lockstep_insitu_stats* out,
                                   char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    require(ring != nullptr, "the ring");
    require(out != nullptr, "out");
    fill_stats(ring->ring.stats(), *out);
  });
}

void lockstep_insitu_producer_free(lockstep_insitu_producer* ring) {
  delete ring;
}

int lockstep_insitu_consume(const char* name, double timeout, lockstep_insitu_consumer** out,
                            char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    require(name != nullptr, "the name");
    require(out != nullptr, "out");
    *out = new lockstep_insitu_consumer{insitu::Consumer::open(name, Deadline::seconds(timeout))};
  });
}

int32_t lockstep_insitu_consumer_fields(const lockstep_insitu_consumer* ring) {
  return ring == nullptr ? 0 : static_cast<int32_t>(ring->ring.schema().size());
}

int lockstep_insitu_consumer_field(const lockstep_insitu_consumer* ring, int32_t field,
                                   lockstep_insitu_field* out, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    require(ring != nullptr, "the ring");
    require(out != nullptr, "out");
    const insitu::Schema& schema = ring->ring.schema();
    if (field < 0 || static_cast<size_t>(field) >= schema.size())
      throw InvalidArgument("insitu: there is no field " + std::to_string(field) +
                            "; the sample has: " + schema.to_string());
    const insitu::Field& from = schema[static_cast<size_t>(field)];
    *out = {from.name.c_str(),
            static_cast<int32_t>(from.dtype),
            static_cast<int32_t>(from.shape.size()),
            {}};
    std::copy(from.shape.begin(), from.shape.end(), out->shape);
  });
}

int lockstep_insitu_take(lockstep_insitu_consumer* ring, int32_t count, double timeout,
                         int32_t* taken, int32_t* ended, char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    require(ring != nullptr, "the ring");
    require(taken != nullptr, "taken");
    ring->batch.clear();
    ring->batch =
        ring->ring.take(static_cast<size_t>(std::max(count, 0)), Deadline::seconds(timeout));
    *taken = static_cast<int32_t>(ring->batch.size());
    if (ended != nullptr) *ended = ring->batch.empty() && ring->ring.ended() ? 1 : 0;
  });
}

const void* lockstep_insitu_data(const lockstep_insitu_consumer* ring, int32_t sample,
                                 int32_t field) {
  if (ring == nullptr || sample < 0 || field < 0) return nullptr;
  if (static_cast<size_t>(sample) >= ring->batch.size() ||
      static_cast<size_t>(field) >= ring->batch.schema().size())
    return nullptr;
  return ring->batch.data(static_cast<size_t>(sample), static_cast<size_t>(field));
}

void lockstep_insitu_release(lockstep_insitu_consumer* ring) {
  if (ring != nullptr) ring->batch.clear();
}

int lockstep_insitu_consumer_stats(const lockstep_insitu_consumer* ring, lockstep_insitu_stats* out,
                                   char* error, size_t error_size) {
  return guarded(error, error_size, [&] {
    require(ring != nullptr, "the ring");
    require(out != nullptr, "out");
    fill_stats(ring->ring.stats(), *out);
  });
}

void lockstep_insitu_consumer_free(lockstep_insitu_consumer* ring) {
  delete ring;
}

}  // extern "C"
