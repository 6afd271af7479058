! The C functions that the module `lockstep` calls: those of lockstep/c/lockstep.h, and of
! lockstep_fortran.c where an array or options are among the arguments. Programs use `lockstep`.
module lockstep_functions
  use, intrinsic :: iso_c_binding
  implicit none

  interface
    function c_init(comm, backend, init_method, secret, device, timeout_seconds, rank, &
        world_size) &
        bind(c, name="lockstep_f_init") result(status)
      import
      type(c_ptr), intent(inout) :: comm
      character(kind=c_char), intent(in) :: backend(*)
      character(kind=c_char), intent(in) :: init_method(*)
      character(kind=c_char), intent(in) :: secret(*)
      character(kind=c_char), intent(in) :: device(*)
      real(c_double), value :: timeout_seconds
      integer(c_int32_t), value :: rank
      integer(c_int32_t), value :: world_size
      integer(c_int) :: status
    end function
    function c_init_mpi(comm, mpi_comm, backend, device, timeout_seconds) &
        bind(c, name="lockstep_f_init_mpi") result(status)
      import
      type(c_ptr), intent(inout) :: comm
      integer(c_int32_t), value :: mpi_comm
      character(kind=c_char), intent(in) :: backend(*)
      character(kind=c_char), intent(in) :: device(*)
      real(c_double), value :: timeout_seconds
      integer(c_int) :: status
    end function
    function c_comm_free(comm) bind(c, name="lockstep_comm_free") result(status)
      import
      type(c_ptr), value :: comm
      integer(c_int) :: status
    end function
    function c_comm_rank(comm, value) bind(c, name="lockstep_comm_rank") result(status)
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), intent(inout) :: value
      integer(c_int) :: status
    end function
    function c_comm_size(comm, value) bind(c, name="lockstep_comm_size") result(status)
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), intent(inout) :: value
      integer(c_int) :: status
    end function
    function c_comm_local_rank(comm, value) bind(c, &
        name="lockstep_comm_local_rank") result(status)
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), intent(inout) :: value
      integer(c_int) :: status
    end function
    function c_comm_local_size(comm, value) bind(c, &
        name="lockstep_comm_local_size") result(status)
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), intent(inout) :: value
      integer(c_int) :: status
    end function
    function c_comm_split(comm, color, key, group) &
        bind(c, name="lockstep_comm_split") result(status)
      import
      type(c_ptr), value :: comm
      integer(c_int32_t), value :: color
      integer(c_int32_t), value :: key
      type(c_ptr), intent(inout) :: group
      integer(c_int) :: status
    end function
    function c_comm_duplicate(comm, copy) bind(c, &
        name="lockstep_comm_duplicate") result(status)
      import
      type(c_ptr), value :: comm
      type(c_ptr), intent(inout) :: copy
      integer(c_int) :: status
    end function
    function c_comm_abort(comm, reason) bind(c, name="lockstep_comm_abort") result(status)
      import
      type(c_ptr), value :: comm
      character(kind=c_char), intent(in) :: reason(*)
      integer(c_int) :: status
    end function
    function c_barrier(comm) bind(c, name="lockstep_barrier") result(status)
      import
      type(c_ptr), value :: comm
      integer(c_int) :: status
    end function
    function c_all_reduce(comm, a, reduction) bind(c, &
        name="lockstep_f_all_reduce") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), intent(inout) :: a
      integer(c_int32_t), value :: reduction
      integer(c_int) :: status
    end function
    function c_broadcast(comm, a, root) bind(c, name="lockstep_f_broadcast") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), intent(inout) :: a
      integer(c_int32_t), value :: root
      integer(c_int) :: status
    end function
    function c_reduce(comm, a, root, reduction) bind(c, &
        name="lockstep_f_reduce") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), intent(inout) :: a
      integer(c_int32_t), value :: root
      integer(c_int32_t), value :: reduction
      integer(c_int) :: status
    end function
    function c_gather(comm, output, input, root) bind(c, &
        name="lockstep_f_gather") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), intent(inout) :: output
      type(*), dimension(..), intent(in) :: input
      integer(c_int32_t), value :: root
      integer(c_int) :: status
    end function
    function c_all_gather(comm, output, input) bind(c, &
        name="lockstep_f_all_gather") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), intent(inout) :: output
      type(*), dimension(..), intent(in) :: input
      integer(c_int) :: status
    end function
    function c_scatter(comm, output, input, root) bind(c, &
        name="lockstep_f_scatter") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), intent(inout) :: output
      type(*), dimension(..), intent(in) :: input
      integer(c_int32_t), value :: root
      integer(c_int) :: status
    end function
    function c_reduce_scatter(comm, output, input, reduction) &
        bind(c, name="lockstep_f_reduce_scatter") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), intent(inout) :: output
      type(*), dimension(..), intent(in) :: input
      integer(c_int32_t), value :: reduction
      integer(c_int) :: status
    end function
    function c_all_to_all(comm, output, input) bind(c, &
        name="lockstep_f_all_to_all") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), intent(inout) :: output
      type(*), dimension(..), intent(in) :: input
      integer(c_int) :: status
    end function
    function c_send(comm, a, destination, tag) bind(c, name="lockstep_f_send") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), intent(in) :: a
      integer(c_int32_t), value :: destination
      integer(c_int32_t), value :: tag
      integer(c_int) :: status
    end function
    function c_recv(comm, a, source, tag) bind(c, name="lockstep_f_recv") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), intent(inout) :: a
      integer(c_int32_t), value :: source
      integer(c_int32_t), value :: tag
      integer(c_int) :: status
    end function
    function c_all_reduce_start(comm, a, reduction, work) &
        bind(c, name="lockstep_f_all_reduce_start") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), asynchronous :: a
      integer(c_int32_t), value :: reduction
      type(c_ptr), intent(inout) :: work
      integer(c_int) :: status
    end function
    function c_broadcast_start(comm, a, root, work) &
        bind(c, name="lockstep_f_broadcast_start") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), asynchronous :: a
      integer(c_int32_t), value :: root
      type(c_ptr), intent(inout) :: work
      integer(c_int) :: status
    end function
    function c_isend(comm, a, destination, tag, work) &
        bind(c, name="lockstep_f_isend") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), intent(in), asynchronous :: a
      integer(c_int32_t), value :: destination
      integer(c_int32_t), value :: tag
      type(c_ptr), intent(inout) :: work
      integer(c_int) :: status
    end function
    function c_irecv(comm, a, source, tag, work) bind(c, &
        name="lockstep_f_irecv") result(status)
      import
      type(c_ptr), value :: comm
      type(*), dimension(..), asynchronous :: a
      integer(c_int32_t), value :: source
      integer(c_int32_t), value :: tag
      type(c_ptr), intent(inout) :: work
      integer(c_int) :: status
    end function
    function c_work_wait(work) bind(c, name="lockstep_work_wait") result(status)
      import
      type(c_ptr), value :: work
      integer(c_int) :: status
    end function
    function c_work_test(work, complete) bind(c, name="lockstep_work_test") result(status)
      import
      type(c_ptr), value :: work
      integer(c_int32_t), intent(inout) :: complete
      integer(c_int) :: status
    end function
    function c_work_free(work) bind(c, name="lockstep_work_free") result(status)
      import
      type(c_ptr), value :: work
      integer(c_int) :: status
    end function
    function c_list_add(list, a, name) bind(c, name="lockstep_f_list_add") result(status)
      import
      type(c_ptr), intent(inout) :: list
      type(*), dimension(..), target :: a
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int) :: status
    end function
    function c_broadcast_arrays(comm, arrays, root) &
        bind(c, name="lockstep_f_broadcast_list") result(status)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: arrays
      integer(c_int32_t), value :: root
      integer(c_int) :: status
    end function
    function c_average_arrays(comm, arrays) bind(c, &
        name="lockstep_f_average_list") result(status)
      import
      type(c_ptr), value :: comm
      type(c_ptr), value :: arrays
      integer(c_int) :: status
    end function
    function c_store_open(timeout_seconds, store) bind(c, &
        name="lockstep_store_open") result(status)
      import
      real(c_double), value :: timeout_seconds
      type(c_ptr), intent(inout) :: store
      integer(c_int) :: status
    end function
    function c_store_free(store) bind(c, name="lockstep_store_free") result(status)
      import
      type(c_ptr), value :: store
      integer(c_int) :: status
    end function
    function c_store_add(store, key, delta, sum) bind(c, &
        name="lockstep_store_add") result(status)
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      integer(c_int64_t), value :: delta
      integer(c_int64_t), intent(inout) :: sum
      integer(c_int) :: status
    end function
    function c_store_wait(store, key, timeout_seconds) &
        bind(c, name="lockstep_store_wait") result(status)
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      real(c_double), value :: timeout_seconds
      integer(c_int) :: status
    end function
    function c_model_load(path, device, model) bind(c, &
        name="lockstep_model_load") result(status)
      import
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), value :: device
      type(c_ptr), intent(inout) :: model
      integer(c_int) :: status
    end function
    function c_model_free(model) bind(c, name="lockstep_model_free") result(status)
      import
      type(c_ptr), value :: model
      integer(c_int) :: status
    end function
    function c_model_parameter_count(model, count) &
        bind(c, name="lockstep_model_parameter_count") result(status)
      import
      type(c_ptr), value :: model
      integer(c_int32_t), intent(inout) :: count
      integer(c_int) :: status
    end function
    function c_model_broadcast(model, comm, root) &
        bind(c, name="lockstep_model_broadcast") result(status)
      import
      type(c_ptr), value :: model
      type(c_ptr), value :: comm
      integer(c_int32_t), value :: root
      integer(c_int) :: status
    end function
    function c_model_average(model, comm) bind(c, &
        name="lockstep_model_average") result(status)
      import
      type(c_ptr), value :: model
      type(c_ptr), value :: comm
      integer(c_int) :: status
    end function
    function c_model_forward(model, input, output) bind(c, &
        name="lockstep_f_forward") result(status)
      import
      type(c_ptr), value :: model
      type(*), dimension(..), intent(in) :: input
      type(*), dimension(..), intent(inout) :: output
      integer(c_int) :: status
    end function
    function c_model_train_step(model, input, target, loss) &
        bind(c, name="lockstep_f_train_step") result(status)
      import
      type(c_ptr), value :: model
      type(*), dimension(..), intent(in) :: input
      type(*), dimension(..), intent(in) :: target
      real(c_double), intent(inout) :: loss
      integer(c_int) :: status
    end function
    function c_model_train_step_lists(model, inputs, targets, loss) &
        bind(c, name="lockstep_f_train_step_list") result(status)
      import
      type(c_ptr), value :: model
      type(c_ptr), value :: inputs
      type(c_ptr), value :: targets
      real(c_double), intent(inout) :: loss
      integer(c_int) :: status
    end function
    function c_model_evaluate(model, input, target, loss) &
        bind(c, name="lockstep_f_evaluate") result(status)
      import
      type(c_ptr), value :: model
      type(*), dimension(..), intent(in) :: input
      type(*), dimension(..), intent(in) :: target
      real(c_double), intent(inout) :: loss
      integer(c_int) :: status
    end function
    function c_model_set_learning_rate(model, rate) &
        bind(c, name="lockstep_model_set_learning_rate") result(status)
      import
      type(c_ptr), value :: model
      real(c_double), value :: rate
      integer(c_int) :: status
    end function
    function c_model_steps(model, steps) bind(c, name="lockstep_model_steps") result(status)
      import
      type(c_ptr), value :: model
      integer(c_int64_t), intent(inout) :: steps
      integer(c_int) :: status
    end function
    function c_model_save(model, path) bind(c, name="lockstep_model_save") result(status)
      import
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int) :: status
    end function
    function c_model_restore(model, path) bind(c, &
        name="lockstep_model_restore") result(status)
      import
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int) :: status
    end function
    function c_model_save_script(model, path) &
        bind(c, name="lockstep_model_save_script") result(status)
      import
      type(c_ptr), value :: model
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int) :: status
    end function
    function c_last_error() bind(c, name="lockstep_last_error") result(text)
      import
      type(c_ptr) :: text
    end function
    function c_status_name(status) bind(c, name="lockstep_status_name") result(text)
      import
      integer(c_int), value :: status
      type(c_ptr) :: text
    end function
    function c_strlen(text) bind(c, name="strlen") result(length)
      import
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
    subroutine c_list_free(list) bind(c, name="lockstep_f_list_free")
      import
      type(c_ptr), value :: list
    end subroutine
    function c_store_set(store, key, bytes, size) bind(c, name="lockstep_store_set") result(status)
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*), bytes(*)
      integer(c_size_t), value :: size
      integer(c_int) :: status
    end function
    function c_store_get(store, key, timeout_seconds, bytes, capacity, size) &
        bind(c, name="lockstep_store_get") result(status)
      import
      type(c_ptr), value :: store
      character(kind=c_char), intent(in) :: key(*)
      real(c_double), value :: timeout_seconds
      character(kind=c_char), intent(inout) :: bytes(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(inout) :: size
      integer(c_int) :: status
    end function
    function c_mlp(sizes, count, activation, single, seed, device, model) &
        bind(c, name="lockstep_f_mlp") result(status)
      import
      integer(c_int64_t), intent(in) :: sizes(*)
      integer(c_int32_t), value :: count, single
      character(kind=c_char), intent(in) :: activation(*), device(*)
      integer(c_int64_t), value :: seed
      type(c_ptr), intent(inout) :: model
      integer(c_int) :: status
    end function
    function c_start_training(model, comm, loss, loss_function, loss_context, optimizer, &
        learning_rate, weight_decay, momentum, beta1, beta2, epsilon, max_gradient_norm, nesterov) &
        bind(c, name="lockstep_f_start_training") result(status)
      import
      type(c_ptr), value :: model, comm, loss_context
      type(c_funptr), value :: loss_function
      character(kind=c_char), intent(in) :: loss(*), optimizer(*)
      real(c_double), value :: learning_rate, weight_decay, momentum, beta1, beta2, epsilon
      real(c_double), value :: max_gradient_norm
      integer(c_int32_t), value :: nesterov
      integer(c_int) :: status
    end function
  end interface
end module lockstep_functions
