add_cc_test(backend_kernels_test ${CMAKE_CURRENT_LIST_DIR}/backend_kernels_test.cc)
add_cc_test(backend_schedule_test
  ${CMAKE_CURRENT_LIST_DIR}/backend_schedule_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/backend_symbolic.cc)
add_cc_test(backend_collective_test
  ${CMAKE_CURRENT_LIST_DIR}/backend_collective_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/backend_world.cc)
add_cc_test(backend_failure_test
  ${CMAKE_CURRENT_LIST_DIR}/backend_failure_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/backend_world.cc)
add_cc_test(backend_moves_test
  ${CMAKE_CURRENT_LIST_DIR}/backend_moves_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/backend_world.cc)
add_cc_test(backend_plans_test
  ${CMAKE_CURRENT_LIST_DIR}/backend_plans_test.cc
  ${CMAKE_CURRENT_LIST_DIR}/backend_symbolic.cc)
