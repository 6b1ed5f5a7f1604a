add_cc_test(core_test ${CMAKE_CURRENT_LIST_DIR}/core_test.cc)
add_cc_test(core_wire_test ${CMAKE_CURRENT_LIST_DIR}/core_wire_test.cc)
add_cc_test(core_negotiator_test ${CMAKE_CURRENT_LIST_DIR}/core_negotiator_test.cc)
add_cc_test(core_join_test ${CMAKE_CURRENT_LIST_DIR}/core_join_test.cc)
add_cc_test(core_sets_test ${CMAKE_CURRENT_LIST_DIR}/core_sets_test.cc)
add_cc_test(core_hostile_test ${CMAKE_CURRENT_LIST_DIR}/core_hostile_test.cc)

# Runs for as many seconds as its first argument says (the second is the seed); 2 without any.
add_cc_test(core_wire_fuzz ${CMAKE_CURRENT_LIST_DIR}/core_wire_fuzz.cc)
