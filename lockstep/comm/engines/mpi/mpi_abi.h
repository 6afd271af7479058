// The names that Open MPI and MPICH's family share: handles, constants and calling conventions.
// They are declared here so that no mpi.h is needed to build, and one binary runs on machines with
// either, both or none. Not a public header.
//
// Open MPI (4 and 5, soname libmpi.so.40): a handle is a pointer to an object that the library
// exports. MPICH's family (the MPICH ABI Compatibility Initiative, soname libmpi.so.12): a handle
// is an int of fixed value. The MPI standard's own interface (MPI 5.0, chapter 20; soname
// libmpi_abi.so.1, which MPICH 5, Intel MPI 2021.18 and Open MPI 6 have): a handle is a pointer of
// fixed value. mpi_headers_mp_test.cpp holds this against each mpi.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::inline v0::mpi {

enum class Abi : uint8_t { kOpenMpi, kMpich, kStandard };

union Handle {
  void* pointer = nullptr;  // Open MPI's and the standard's
  int number;               // MPICH's
};
using Comm = Handle;
using Datatype = Handle;
using Operator = Handle;
using RequestHandle = Handle;
using Group = Handle;
using ErrorHandler = Handle;

// Room for an MPI_Status of either; MPI's functions read it.
struct Status {
  alignas(8) std::array<std::byte, 64> room;
};

// The same in all.
inline constexpr int kSuccess = 0;
// For a version or an error: at least as much as MPI may write.
inline constexpr size_t kMostText = 8192;

struct Constants {
  intptr_t in_place;      // MPI_IN_PLACE, an address
  int error_truncate;     // MPI_ERR_TRUNCATE: a message longer than its receive
  int thread_serialized;  // MPI_THREAD_SERIALIZED
};
constexpr Constants constants_of(Abi abi) {
  switch (abi) {
    case Abi::kOpenMpi:
      return {1, 15, 2};
    case Abi::kMpich:
      return {-1, 14, 2};
    case Abi::kStandard:
      break;
  }
  return {1, 15, 2048};
}

struct Handles {
  Comm world, comm_null;
  RequestHandle request_null;
  ErrorHandler errors_return;
  Datatype byte, int8, uint8, int16, uint16, int32, int64, float32, float64;
  Operator sum, product, min, max, bit_and, bit_or, bit_xor;
};

struct HandleRow {
  Handle Handles::* where;
  const char* name;
  const char* open_mpi;  // the symbol
  int mpich;             // the value
  int standard;          // the value
};
inline constexpr HandleRow kHandles[] = {
    {&Handles::world, "MPI_COMM_WORLD", "ompi_mpi_comm_world", 0x44000000, 0x101},
    {&Handles::comm_null, "MPI_COMM_NULL", "ompi_mpi_comm_null", 0x04000000, 0x100},
    {&Handles::request_null, "MPI_REQUEST_NULL", "ompi_request_null", 0x2c000000, 0x180},
    {&Handles::errors_return, "MPI_ERRORS_RETURN", "ompi_mpi_errors_return", 0x54000001, 0x143},
    {&Handles::byte, "MPI_BYTE", "ompi_mpi_byte", 0x4c00010d, 0x247},
    {&Handles::int8, "MPI_INT8_T", "ompi_mpi_int8_t", 0x4c000137, 0x240},
    {&Handles::uint8, "MPI_UINT8_T", "ompi_mpi_uint8_t", 0x4c00013b, 0x241},
    {&Handles::int16, "MPI_INT16_T", "ompi_mpi_int16_t", 0x4c000238, 0x248},
    {&Handles::uint16, "MPI_UINT16_T", "ompi_mpi_uint16_t", 0x4c00023c, 0x249},
    {&Handles::int32, "MPI_INT32_T", "ompi_mpi_int32_t", 0x4c000439, 0x250},
    {&Handles::int64, "MPI_INT64_T", "ompi_mpi_int64_t", 0x4c00083a, 0x258},
    {&Handles::float32, "MPI_FLOAT", "ompi_mpi_float", 0x4c00040a, 0x210},
    {&Handles::float64, "MPI_DOUBLE", "ompi_mpi_double", 0x4c00080b, 0x214},
    {&Handles::sum, "MPI_SUM", "ompi_mpi_op_sum", 0x58000003, 0x21},
    {&Handles::product, "MPI_PROD", "ompi_mpi_op_prod", 0x58000004, 0x24},
    {&Handles::min, "MPI_MIN", "ompi_mpi_op_min", 0x58000002, 0x22},
    {&Handles::max, "MPI_MAX", "ompi_mpi_op_max", 0x58000001, 0x23},
    {&Handles::bit_and, "MPI_BAND", "ompi_mpi_op_band", 0x58000006, 0x28},
    {&Handles::bit_or, "MPI_BOR", "ompi_mpi_op_bor", 0x58000008, 0x29},
    {&Handles::bit_xor, "MPI_BXOR", "ompi_mpi_op_bxor", 0x5800000a, 0x2a},
};

// How a value is passed to, or comes from, a library whose handles are pointers, or numbers.
template <typename T>
struct Passed {
  using AsPointer = T;
  using AsNumber = T;
  static T pointer(T value) { return value; }
  static T number(T value) { return value; }
  static T of(T value) { return value; }
};
template <>
struct Passed<Handle> {
  using AsPointer = void*;
  using AsNumber = int;
  static void* pointer(Handle handle) { return handle.pointer; }
  static int number(Handle handle) { return handle.number; }
  static Handle of(void* value) { return {.pointer = value}; }
  static Handle of(int value) { return {.number = value}; }
};
template <>
struct Passed<Handle*> {
  using AsPointer = void**;
  using AsNumber = int*;
  static void** pointer(Handle* handle) { return &handle->pointer; }
  static int* number(Handle* handle) { return &handle->number; }
};

template <typename Signature>
class Function;

// A function of the library, called in the form of its interface. Trivially copyable.
template <typename Result, typename... Arguments>
class Function<Result(Arguments...)> {
 public:
  Function() = default;
  Function(void* symbol, Abi abi) : symbol_(symbol), numbers_(abi == Abi::kMpich) {}

  Result operator()(Arguments... arguments) const {
    if (numbers_) {
      using Numbers =
          typename Passed<Result>::AsNumber (*)(typename Passed<Arguments>::AsNumber...);
      return Passed<Result>::of(
          reinterpret_cast<Numbers>(symbol_)(Passed<Arguments>::number(arguments)...));
    }
    using Pointers =
        typename Passed<Result>::AsPointer (*)(typename Passed<Arguments>::AsPointer...);
    return Passed<Result>::of(
        reinterpret_cast<Pointers>(symbol_)(Passed<Arguments>::pointer(arguments)...));
  }

 private:
  void* symbol_ = nullptr;
  bool numbers_ = false;
};

}  // namespace lockstep::inline v0::mpi
