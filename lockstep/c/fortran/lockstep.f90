! Lockstep for Fortran: communicators, collectives, and TorchScript models that train on all ranks.
!
! It stands on the C interface, where each function has the same name; the headers of lockstep/c say
! more.
!
! - Errors: with `ierr`, the status is put there (LOCKSTEP_OK is 0) and lockstep_error() has the
!   text. Without it the text goes to the error unit, and the program ends with `error stop 1`.
! - Arrays are of any rank up to 15, of real32, real64, int8 to int64 or logical(c_bool), contiguous
!   or sections with a positive step. Nothing is copied. An array a(n1, ..., nk) is the tensor
!   (nk, ..., n1): the same memory, seen in row-major order. So the last index counts parts, rows
!   and samples: a batch of n samples with m numbers each is x(m, n).
! - Array arguments have no declared type, so the compiler cannot check it. Lockstep refuses others,
!   and ranks whose types differ.
! - Trailing blanks are no part of a text, so a character variable of any length can have it.
! - Compile lockstep_functions.f90 before it, and lockstep_fortran.c with the C compiler that
!   belongs to the Fortran compiler.
module lockstep
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit
  use lockstep_functions
  implicit none
  private

  ! Handles. Each is freed by its own procedure, lockstep_comm_free and so on.
  type, public :: lockstep_comm
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: lockstep_work
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: lockstep_store
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: lockstep_model
    private
    type(c_ptr) :: handle = c_null_ptr
  end type
  ! Arrays of different shapes and types, for average_arrays, broadcast_arrays and models with
  ! several inputs. It refers to the arrays, which must be targets and stay where they are.
  type, public :: lockstep_list
    private
    type(c_ptr) :: handle = c_null_ptr
  end type

  ! An array as a loss function gets it; c_f_pointer makes a pointer of `data`. The shape is in C's
  ! order, the last dimension first in memory.
  type, bind(c), public :: lockstep_array
    type(c_ptr) :: data
    type(c_ptr) :: shape
    type(c_ptr) :: strides
    integer(c_int32_t) :: ndim, dtype, device_type, device_index
  end type

  integer, parameter, public :: LOCKSTEP_OK = 0, LOCKSTEP_INVALID_ARGUMENT = 1, &
    LOCKSTEP_TIMEOUT = 2, LOCKSTEP_PEER_LOST = 3, LOCKSTEP_MISMATCH = 4, &
    LOCKSTEP_STORE_ERROR = 5, LOCKSTEP_DATA_ERROR = 6, LOCKSTEP_CHECKPOINT_ERROR = 7, &
    LOCKSTEP_LAUNCH_ERROR = 8, LOCKSTEP_SYSTEM_ERROR = 9, LOCKSTEP_OUT_OF_MEMORY = 10, &
    LOCKSTEP_TORCH_ERROR = 11, LOCKSTEP_CALLBACK_ERROR = 12, LOCKSTEP_INTERNAL_ERROR = 13
  integer, parameter, public :: LOCKSTEP_SUM = 0, LOCKSTEP_AVG = 1, LOCKSTEP_PRODUCT = 2, &
    LOCKSTEP_MIN = 3, LOCKSTEP_MAX = 4, LOCKSTEP_BIT_AND = 5, LOCKSTEP_BIT_OR = 6, &
    LOCKSTEP_BIT_XOR = 7

  public :: lockstep_init, lockstep_init_from_mpi, lockstep_comm_free, lockstep_comm_rank, &
    lockstep_comm_size, &
    lockstep_comm_local_rank, lockstep_comm_local_size, lockstep_comm_split, &
    lockstep_comm_duplicate, lockstep_comm_abort, lockstep_barrier, lockstep_all_reduce, &
    lockstep_broadcast, lockstep_reduce, lockstep_gather, lockstep_all_gather, &
    lockstep_scatter, lockstep_reduce_scatter, lockstep_all_to_all, lockstep_send, &
    lockstep_recv, lockstep_all_reduce_start, lockstep_broadcast_start, lockstep_isend, &
    lockstep_irecv, lockstep_work_wait, lockstep_work_test, lockstep_work_free, &
    lockstep_list_add, lockstep_broadcast_arrays, lockstep_average_arrays, &
    lockstep_store_open, lockstep_store_free, lockstep_store_add, lockstep_store_wait, &
    lockstep_model_load, lockstep_model_free, lockstep_model_parameter_count, &
    lockstep_model_broadcast, lockstep_model_average, lockstep_model_forward, &
    lockstep_model_train_step, lockstep_model_train_step_lists, lockstep_model_evaluate, &
    lockstep_model_set_learning_rate, lockstep_model_steps, lockstep_model_save, &
    lockstep_model_restore, lockstep_model_save_script, lockstep_store_set, &
    lockstep_store_get, lockstep_model_mlp, lockstep_model_start_training, lockstep_is_member, &
    lockstep_list_free, lockstep_error, lockstep_status_name

contains

  ! Joins the job of the environment (lockstep run, mpirun, srun, torchrun), or is a rank alone.
  subroutine lockstep_init(comm, backend, init_method, secret, device, timeout_seconds, rank, &
      world_size, ierr)
    type(lockstep_comm), intent(out) :: comm
    character(*), intent(in), optional :: backend
    character(*), intent(in), optional :: init_method
    character(*), intent(in), optional :: secret
    character(*), intent(in), optional :: device
    real(c_double), intent(in), optional :: timeout_seconds
    integer, intent(in), optional :: rank
    integer, intent(in), optional :: world_size
    integer, intent(out), optional :: ierr
    call finish(c_init(comm%handle, c_text(backend), c_text(init_method), c_text(secret), &
      c_text(device), or_real(timeout_seconds, 0.0_c_double), or_default(rank, -1), &
      or_default(world_size, -1)), "lockstep_init", ierr)
  end subroutine

  ! The communicator of the processes of an MPI communicator: MPI_COMM_WORLD of `use mpi` or mpif.h,
  ! or MPI_VAL of a type(MPI_Comm) of `use mpi_f08`. The program calls MPI_Init and MPI_Finalize.
  subroutine lockstep_init_from_mpi(mpi_comm, comm, backend, device, timeout_seconds, ierr)
    integer, intent(in) :: mpi_comm
    type(lockstep_comm), intent(out) :: comm
    character(*), intent(in), optional :: backend
    character(*), intent(in), optional :: device
    real(c_double), intent(in), optional :: timeout_seconds
    integer, intent(out), optional :: ierr
    call finish(c_init_mpi(comm%handle, int(mpi_comm, c_int32_t), c_text(backend), &
      c_text(device), or_real(timeout_seconds, 0.0_c_double)), "lockstep_init_from_mpi", ierr)
  end subroutine

  subroutine lockstep_comm_free(comm, ierr)
    type(lockstep_comm), intent(inout) :: comm
    integer, intent(out), optional :: ierr
    call finish(c_comm_free(comm%handle), "lockstep_comm_free", ierr)
    comm%handle = c_null_ptr
  end subroutine

  ! The place of this rank in the group, and among the ranks of its host.
  subroutine lockstep_comm_rank(comm, value, ierr)
    type(lockstep_comm), intent(in) :: comm
    integer, intent(out) :: value
    integer, intent(out), optional :: ierr
    call finish(c_comm_rank(comm%handle, value), "lockstep_comm_rank", ierr)
  end subroutine

  subroutine lockstep_comm_size(comm, value, ierr)
    type(lockstep_comm), intent(in) :: comm
    integer, intent(out) :: value
    integer, intent(out), optional :: ierr
    call finish(c_comm_size(comm%handle, value), "lockstep_comm_size", ierr)
  end subroutine

  subroutine lockstep_comm_local_rank(comm, value, ierr)
    type(lockstep_comm), intent(in) :: comm
    integer, intent(out) :: value
    integer, intent(out), optional :: ierr
    call finish(c_comm_local_rank(comm%handle, value), "lockstep_comm_local_rank", ierr)
  end subroutine

  subroutine lockstep_comm_local_size(comm, value, ierr)
    type(lockstep_comm), intent(in) :: comm
    integer, intent(out) :: value
    integer, intent(out), optional :: ierr
    call finish(c_comm_local_size(comm%handle, value), "lockstep_comm_local_size", ierr)
  end subroutine

  ! A rank with a negative color is in no group: lockstep_is_member(group) is false there.
  subroutine lockstep_comm_split(comm, color, key, group, ierr)
    type(lockstep_comm), intent(in) :: comm
    integer, intent(in) :: color
    integer, intent(in) :: key
    type(lockstep_comm), intent(out) :: group
    integer, intent(out), optional :: ierr
    call finish(c_comm_split(comm%handle, int(color, c_int32_t), int(key, c_int32_t), &
      group%handle), "lockstep_comm_split", ierr)
  end subroutine

  subroutine lockstep_comm_duplicate(comm, copy, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(lockstep_comm), intent(out) :: copy
    integer, intent(out), optional :: ierr
    call finish(c_comm_duplicate(comm%handle, copy%handle), "lockstep_comm_duplicate", ierr)
  end subroutine

  subroutine lockstep_comm_abort(comm, reason, ierr)
    type(lockstep_comm), intent(in) :: comm
    character(*), intent(in) :: reason
    integer, intent(out), optional :: ierr
    call finish(c_comm_abort(comm%handle, c_text(reason)), "lockstep_comm_abort", ierr)
  end subroutine

  subroutine lockstep_barrier(comm, ierr)
    type(lockstep_comm), intent(in) :: comm
    integer, intent(out), optional :: ierr
    call finish(c_barrier(comm%handle), "lockstep_barrier", ierr)
  end subroutine

  ! Collectives. Ranks and roots count from 0. Parts are taken along the last dimension.
  subroutine lockstep_all_reduce(comm, a, reduction, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), intent(inout) :: a
    integer, intent(in) :: reduction
    integer, intent(out), optional :: ierr
    call finish(c_all_reduce(comm%handle, a, int(reduction, c_int32_t)), "lockstep_all_reduce", &
      ierr)
  end subroutine

  subroutine lockstep_broadcast(comm, a, root, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), intent(inout) :: a
    integer, intent(in) :: root
    integer, intent(out), optional :: ierr
    call finish(c_broadcast(comm%handle, a, int(root, c_int32_t)), "lockstep_broadcast", ierr)
  end subroutine

  subroutine lockstep_reduce(comm, a, root, reduction, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), intent(inout) :: a
    integer, intent(in) :: root
    integer, intent(in) :: reduction
    integer, intent(out), optional :: ierr
    call finish(c_reduce(comm%handle, a, int(root, c_int32_t), int(reduction, c_int32_t)), &
      "lockstep_reduce", ierr)
  end subroutine

  subroutine lockstep_gather(comm, output, input, root, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), intent(inout) :: output
    type(*), dimension(..), intent(in) :: input
    integer, intent(in) :: root
    integer, intent(out), optional :: ierr
    call finish(c_gather(comm%handle, output, input, int(root, c_int32_t)), "lockstep_gather", &
      ierr)
  end subroutine

  subroutine lockstep_all_gather(comm, output, input, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), intent(inout) :: output
    type(*), dimension(..), intent(in) :: input
    integer, intent(out), optional :: ierr
    call finish(c_all_gather(comm%handle, output, input), "lockstep_all_gather", ierr)
  end subroutine

  subroutine lockstep_scatter(comm, output, input, root, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), intent(inout) :: output
    type(*), dimension(..), intent(in) :: input
    integer, intent(in) :: root
    integer, intent(out), optional :: ierr
    call finish(c_scatter(comm%handle, output, input, int(root, c_int32_t)), "lockstep_scatter", &
      ierr)
  end subroutine

  subroutine lockstep_reduce_scatter(comm, output, input, reduction, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), intent(inout) :: output
    type(*), dimension(..), intent(in) :: input
    integer, intent(in) :: reduction
    integer, intent(out), optional :: ierr
    call finish(c_reduce_scatter(comm%handle, output, input, int(reduction, c_int32_t)), &
      "lockstep_reduce_scatter", ierr)
  end subroutine

  subroutine lockstep_all_to_all(comm, output, input, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), intent(inout) :: output
    type(*), dimension(..), intent(in) :: input
    integer, intent(out), optional :: ierr
    call finish(c_all_to_all(comm%handle, output, input), "lockstep_all_to_all", ierr)
  end subroutine

  subroutine lockstep_send(comm, a, destination, tag, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), intent(in) :: a
    integer, intent(in) :: destination
    integer, intent(in) :: tag
    integer, intent(out), optional :: ierr
    call finish(c_send(comm%handle, a, int(destination, c_int32_t), int(tag, c_int32_t)), &
      "lockstep_send", ierr)
  end subroutine

  subroutine lockstep_recv(comm, a, source, tag, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), intent(inout) :: a
    integer, intent(in) :: source
    integer, intent(in) :: tag
    integer, intent(out), optional :: ierr
    call finish(c_recv(comm%handle, a, int(source, c_int32_t), int(tag, c_int32_t)), &
      "lockstep_recv", ierr)
  end subroutine

  ! Without waiting. Declare the actual array asynchronous, and leave it alone until work_wait.
  subroutine lockstep_all_reduce_start(comm, a, reduction, work, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), asynchronous :: a
    integer, intent(in) :: reduction
    type(lockstep_work), intent(out) :: work
    integer, intent(out), optional :: ierr
    call finish(c_all_reduce_start(comm%handle, a, int(reduction, c_int32_t), work%handle), &
      "lockstep_all_reduce_start", ierr)
  end subroutine

  subroutine lockstep_broadcast_start(comm, a, root, work, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), asynchronous :: a
    integer, intent(in) :: root
    type(lockstep_work), intent(out) :: work
    integer, intent(out), optional :: ierr
    call finish(c_broadcast_start(comm%handle, a, int(root, c_int32_t), work%handle), &
      "lockstep_broadcast_start", ierr)
  end subroutine

  subroutine lockstep_isend(comm, a, destination, tag, work, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), intent(in), asynchronous :: a
    integer, intent(in) :: destination
    integer, intent(in) :: tag
    type(lockstep_work), intent(out) :: work
    integer, intent(out), optional :: ierr
    call finish(c_isend(comm%handle, a, int(destination, c_int32_t), int(tag, c_int32_t), &
      work%handle), "lockstep_isend", ierr)
  end subroutine

  subroutine lockstep_irecv(comm, a, source, tag, work, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(*), dimension(..), asynchronous :: a
    integer, intent(in) :: source
    integer, intent(in) :: tag
    type(lockstep_work), intent(out) :: work
    integer, intent(out), optional :: ierr
    call finish(c_irecv(comm%handle, a, int(source, c_int32_t), int(tag, c_int32_t), work%handle), &
      "lockstep_irecv", ierr)
  end subroutine

  subroutine lockstep_work_wait(work, ierr)
    type(lockstep_work), intent(in) :: work
    integer, intent(out), optional :: ierr
    call finish(c_work_wait(work%handle), "lockstep_work_wait", ierr)
  end subroutine

  ! `complete` is 1 or 0.
  subroutine lockstep_work_test(work, complete, ierr)
    type(lockstep_work), intent(in) :: work
    integer, intent(out) :: complete
    integer, intent(out), optional :: ierr
    call finish(c_work_test(work%handle, complete), "lockstep_work_test", ierr)
  end subroutine

  subroutine lockstep_work_free(work, ierr)
    type(lockstep_work), intent(inout) :: work
    integer, intent(out), optional :: ierr
    call finish(c_work_free(work%handle), "lockstep_work_free", ierr)
    work%handle = c_null_ptr
  end subroutine

  ! Adds an array, which must be a target.
  subroutine lockstep_list_add(list, a, name, ierr)
    type(lockstep_list), intent(inout) :: list
    type(*), dimension(..), target :: a
    character(*), intent(in), optional :: name
    integer, intent(out), optional :: ierr
    call finish(c_list_add(list%handle, a, c_text(name)), "lockstep_list_add", ierr)
  end subroutine

  subroutine lockstep_broadcast_arrays(comm, arrays, root, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(lockstep_list), intent(in) :: arrays
    integer, intent(in) :: root
    integer, intent(out), optional :: ierr
    call finish(c_broadcast_arrays(comm%handle, arrays%handle, int(root, c_int32_t)), &
      "lockstep_broadcast_arrays", ierr)
  end subroutine

  ! Replaces the arrays by their averages over the ranks, in few messages: an application's own
  ! gradients.
  subroutine lockstep_average_arrays(comm, arrays, ierr)
    type(lockstep_comm), intent(in) :: comm
    type(lockstep_list), intent(in) :: arrays
    integer, intent(out), optional :: ierr
    call finish(c_average_arrays(comm%handle, arrays%handle), "lockstep_average_arrays", ierr)
  end subroutine

  ! The job's store of keys and values.
  subroutine lockstep_store_open(timeout_seconds, store, ierr)
    real(c_double), intent(in) :: timeout_seconds
    type(lockstep_store), intent(out) :: store
    integer, intent(out), optional :: ierr
    call finish(c_store_open(timeout_seconds, store%handle), "lockstep_store_open", ierr)
  end subroutine

  subroutine lockstep_store_free(store, ierr)
    type(lockstep_store), intent(inout) :: store
    integer, intent(out), optional :: ierr
    call finish(c_store_free(store%handle), "lockstep_store_free", ierr)
    store%handle = c_null_ptr
  end subroutine

  subroutine lockstep_store_add(store, key, delta, sum, ierr)
    type(lockstep_store), intent(in) :: store
    character(*), intent(in) :: key
    integer(c_int64_t), intent(in) :: delta
    integer(c_int64_t), intent(out) :: sum
    integer, intent(out), optional :: ierr
    call finish(c_store_add(store%handle, c_text(key), delta, sum), "lockstep_store_add", ierr)
  end subroutine

  subroutine lockstep_store_wait(store, key, timeout_seconds, ierr)
    type(lockstep_store), intent(in) :: store
    character(*), intent(in) :: key
    real(c_double), intent(in) :: timeout_seconds
    integer, intent(out), optional :: ierr
    call finish(c_store_wait(store%handle, c_text(key), timeout_seconds), "lockstep_store_wait", &
      ierr)
  end subroutine

  subroutine lockstep_model_load(path, model, device, ierr)
    character(*), intent(in) :: path
    type(lockstep_model), intent(out) :: model
    character(*), intent(in), optional :: device
    integer, intent(out), optional :: ierr
    character(:, kind=c_char), allocatable, target :: text
    type(c_ptr) :: given
    given = c_null_ptr
    if (present(device)) then
      text = c_text(device)
      given = c_loc(text)
    end if
    call finish(c_model_load(c_text(path), given, model%handle), "lockstep_model_load", ierr)
  end subroutine

  subroutine lockstep_model_free(model, ierr)
    type(lockstep_model), intent(inout) :: model
    integer, intent(out), optional :: ierr
    call finish(c_model_free(model%handle), "lockstep_model_free", ierr)
    model%handle = c_null_ptr
  end subroutine

  subroutine lockstep_model_parameter_count(model, count, ierr)
    type(lockstep_model), intent(in) :: model
    integer, intent(out) :: count
    integer, intent(out), optional :: ierr
    call finish(c_model_parameter_count(model%handle, count), "lockstep_model_parameter_count", &
      ierr)
  end subroutine

  subroutine lockstep_model_broadcast(model, comm, root, ierr)
    type(lockstep_model), intent(in) :: model
    type(lockstep_comm), intent(in) :: comm
    integer, intent(in) :: root
    integer, intent(out), optional :: ierr
    call finish(c_model_broadcast(model%handle, comm%handle, int(root, c_int32_t)), &
      "lockstep_model_broadcast", ierr)
  end subroutine

  subroutine lockstep_model_average(model, comm, ierr)
    type(lockstep_model), intent(in) :: model
    type(lockstep_comm), intent(in) :: comm
    integer, intent(out), optional :: ierr
    call finish(c_model_average(model%handle, comm%handle), "lockstep_model_average", ierr)
  end subroutine

  ! One input, one output of the shape that the model gives.
  subroutine lockstep_model_forward(model, input, output, ierr)
    type(lockstep_model), intent(in) :: model
    type(*), dimension(..), intent(in) :: input
    type(*), dimension(..), intent(inout) :: output
    integer, intent(out), optional :: ierr
    call finish(c_model_forward(model%handle, input, output), "lockstep_model_forward", ierr)
  end subroutine

  ! One step of all ranks. A rank without samples gives x(m, 0). `loss` is the mean over all ranks'
  ! samples.
  subroutine lockstep_model_train_step(model, input, target, loss, ierr)
    type(lockstep_model), intent(in) :: model
    type(*), dimension(..), intent(in) :: input
    type(*), dimension(..), intent(in) :: target
    real(c_double), intent(out) :: loss
    integer, intent(out), optional :: ierr
    call finish(c_model_train_step(model%handle, input, target, loss), &
      "lockstep_model_train_step", ierr)
  end subroutine

  subroutine lockstep_model_train_step_lists(model, inputs, targets, loss, ierr)
    type(lockstep_model), intent(in) :: model
    type(lockstep_list), intent(in) :: inputs
    type(lockstep_list), intent(in) :: targets
    real(c_double), intent(out) :: loss
    integer, intent(out), optional :: ierr
    call finish(c_model_train_step_lists(model%handle, inputs%handle, targets%handle, loss), &
      "lockstep_model_train_step_lists", ierr)
  end subroutine

  subroutine lockstep_model_evaluate(model, input, target, loss, ierr)
    type(lockstep_model), intent(in) :: model
    type(*), dimension(..), intent(in) :: input
    type(*), dimension(..), intent(in) :: target
    real(c_double), intent(out) :: loss
    integer, intent(out), optional :: ierr
    call finish(c_model_evaluate(model%handle, input, target, loss), "lockstep_model_evaluate", &
      ierr)
  end subroutine

  subroutine lockstep_model_set_learning_rate(model, rate, ierr)
    type(lockstep_model), intent(in) :: model
    real(c_double), intent(in) :: rate
    integer, intent(out), optional :: ierr
    call finish(c_model_set_learning_rate(model%handle, rate), "lockstep_model_set_learning_rate", &
      ierr)
  end subroutine

  subroutine lockstep_model_steps(model, steps, ierr)
    type(lockstep_model), intent(in) :: model
    integer(c_int64_t), intent(out) :: steps
    integer, intent(out), optional :: ierr
    call finish(c_model_steps(model%handle, steps), "lockstep_model_steps", ierr)
  end subroutine

  ! Checkpoints: every rank calls it, and rank 0 writes.
  subroutine lockstep_model_save(model, path, ierr)
    type(lockstep_model), intent(in) :: model
    character(*), intent(in) :: path
    integer, intent(out), optional :: ierr
    call finish(c_model_save(model%handle, c_text(path)), "lockstep_model_save", ierr)
  end subroutine

  subroutine lockstep_model_restore(model, path, ierr)
    type(lockstep_model), intent(in) :: model
    character(*), intent(in) :: path
    integer, intent(out), optional :: ierr
    call finish(c_model_restore(model%handle, c_text(path)), "lockstep_model_restore", ierr)
  end subroutine

  subroutine lockstep_model_save_script(model, path, ierr)
    type(lockstep_model), intent(in) :: model
    character(*), intent(in) :: path
    integer, intent(out), optional :: ierr
    call finish(c_model_save_script(model%handle, c_text(path)), "lockstep_model_save_script", &
      ierr)
  end subroutine

  ! Puts the bytes of `value` at `key`, trailing blanks included.
  subroutine lockstep_store_set(store, key, value, ierr)
    type(lockstep_store), intent(in) :: store
    character(*), intent(in) :: key, value
    integer, intent(out), optional :: ierr
    call finish(c_store_set(store%handle, c_text(key), value, len(value, c_size_t)), &
      "lockstep_store_set", ierr)
  end subroutine

  ! Waits until the key exists. `value` must have room for its bytes, and is filled with blanks.
  subroutine lockstep_store_get(store, key, timeout_seconds, value, ierr)
    type(lockstep_store), intent(in) :: store
    character(*), intent(in) :: key
    real(c_double), intent(in) :: timeout_seconds
    character(*), intent(inout) :: value
    integer, intent(out), optional :: ierr
    integer(c_size_t) :: size
    integer(c_int) :: status
    status = c_store_get(store%handle, c_text(key), timeout_seconds, value, &
      len(value, c_size_t), size)
    if (status == LOCKSTEP_OK) value(size + 1:) = " "
    call finish(status, "lockstep_store_get", ierr)
  end subroutine

  ! A network of fully connected layers of real64, or real32 if `single`. `sizes` are those of the
  ! inputs, the hidden layers and the outputs. `activation` is "tanh" unless it is given.
  subroutine lockstep_model_mlp(sizes, model, activation, single, seed, device, ierr)
    integer, intent(in) :: sizes(:)
    type(lockstep_model), intent(out) :: model
    character(*), intent(in), optional :: activation, device
    logical, intent(in), optional :: single
    integer, intent(in), optional :: seed
    integer, intent(out), optional :: ierr
    integer(c_int32_t) :: is_single
    is_single = 0
    if (present(single)) then
      if (single) is_single = 1
    end if
    call finish(c_mlp(int(sizes, c_int64_t), size(sizes, kind=c_int32_t), c_text(activation), &
      is_single, int(or_default(seed, 0), c_int64_t), c_text(device), model%handle), &
      "lockstep_model_mlp", ierr)
  end subroutine

  ! `loss` is "mse", "l1", "cross_entropy", "nll" or a TorchScript file; or give loss_function, the
  ! c_funloc of a bind(c) function of lockstep_loss_function's arguments (lockstep/c/model.h).
  subroutine lockstep_model_start_training(model, comm, loss, optimizer, learning_rate, &
      weight_decay, momentum, beta1, beta2, epsilon, max_gradient_norm, nesterov, loss_function, &
      loss_context, ierr)
    type(lockstep_model), intent(in) :: model
    type(lockstep_comm), intent(in) :: comm
    character(*), intent(in), optional :: loss, optimizer
    real(c_double), intent(in), optional :: learning_rate, weight_decay, momentum, beta1, beta2
    real(c_double), intent(in), optional :: epsilon, max_gradient_norm
    logical, intent(in), optional :: nesterov
    type(c_funptr), intent(in), optional :: loss_function
    type(c_ptr), intent(in), optional :: loss_context
    integer, intent(out), optional :: ierr
    character(:), allocatable :: kind
    type(c_funptr) :: function
    type(c_ptr) :: context
    integer(c_int32_t) :: is_nesterov
    kind = "adam"
    if (present(optimizer)) kind = optimizer
    function = c_null_funptr
    if (present(loss_function)) function = loss_function
    context = c_null_ptr
    if (present(loss_context)) context = loss_context
    is_nesterov = 0
    if (present(nesterov)) then
      if (nesterov) is_nesterov = 1
    end if
    call finish(c_start_training(model%handle, comm%handle, c_text(loss), function, context, &
      c_text(kind), or_real(learning_rate, 1e-3_c_double), or_real(weight_decay, 0.0_c_double), &
      or_real(momentum, 0.0_c_double), or_real(beta1, 0.9_c_double), &
      or_real(beta2, 0.999_c_double), or_real(epsilon, 1e-8_c_double), &
      or_real(max_gradient_norm, 0.0_c_double), is_nesterov), "lockstep_model_start_training", ierr)
  end subroutine

  ! Whether this rank is in the group: lockstep_comm_split gives none to a negative color.
  logical function lockstep_is_member(group)
    type(lockstep_comm), intent(in) :: group
    lockstep_is_member = c_associated(group%handle)
  end function

  ! Frees the list; the arrays stay.
  subroutine lockstep_list_free(list)
    type(lockstep_list), intent(inout) :: list
    call c_list_free(list%handle)
    list%handle = c_null_ptr
  end subroutine

  ! The text of this thread's last error; "" if its last call succeeded.
  function lockstep_error() result(text)
    character(:), allocatable :: text
    text = text_of(c_last_error())
  end function

  ! "LOCKSTEP_TIMEOUT" and so on.
  function lockstep_status_name(status) result(text)
    integer, intent(in) :: status
    character(:), allocatable :: text
    text = text_of(c_status_name(int(status, c_int)))
  end function

  function text_of(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(:), allocatable :: text
    character(kind=c_char), pointer :: bytes(:)
    integer :: i, n
    n = int(c_strlen(pointer))
    call c_f_pointer(pointer, bytes, [n])
    allocate (character(n) :: text)
    do i = 1, n
      text(i:i) = bytes(i)
    end do
  end function

  ! A text for C, without its trailing blanks; an empty one for an argument that is absent.
  function c_text(text) result(copy)
    character(*), intent(in), optional :: text
    character(:, kind=c_char), allocatable :: copy
    copy = c_null_char
    if (present(text)) copy = trim(text)//c_null_char
  end function

  integer(c_int32_t) function or_default(value, otherwise)
    integer, intent(in), optional :: value
    integer, intent(in) :: otherwise
    or_default = int(otherwise, c_int32_t)
    if (present(value)) or_default = int(value, c_int32_t)
  end function

  real(c_double) function or_real(value, otherwise)
    real(c_double), intent(in), optional :: value
    real(c_double), intent(in) :: otherwise
    or_real = otherwise
    if (present(value)) or_real = value
  end function

  subroutine finish(status, where, ierr)
    integer(c_int), intent(in) :: status
    character(*), intent(in) :: where
    integer, intent(out), optional :: ierr
    if (present(ierr)) then
      ierr = int(status)
    else if (status /= LOCKSTEP_OK) then
      write (error_unit, "(a)") where//": "//lockstep_error()
      error stop 1
    end if
  end subroutine
end module lockstep
